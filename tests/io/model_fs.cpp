#include "tests/io/model_fs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::io {
namespace {

[[noreturn]] void refuse(std::string_view operation, const Path& path, std::string_view reason) {
  throw IoError(str("[", path.string(), "] ", operation, ": ", reason));
}

}  // namespace

class ModelFs::File final : public OutputFile {
 public:
  File(const ModelFs& fs, NodePtr node) : fs_(fs), node_(std::move(node)) {}
  void write(std::span<const std::byte> bytes) override {
    node_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    fs_.changed();
  }
  void sync() override {
    node_->synced = node_->bytes.size();
    fs_.changed();
  }
  void close() override {}

 private:
  const ModelFs& fs_;
  NodePtr node_;
};

ModelFs::ModelFs() : root_(std::make_shared<Node>()) { root_->is_dir = true; }
ModelFs::~ModelFs() = default;

ModelFs::NodePtr ModelFs::find(const Path& path) const {
  NodePtr at = root_;
  for (const Path& part : path.relative_path()) {
    if (part.empty()) continue;
    const auto entry = at->is_dir ? at->entries.find(part.string()) : at->entries.end();
    if (entry == at->entries.end()) return nullptr;
    at = entry->second;
  }
  return at;
}

ModelFs::NodePtr ModelFs::folder_of(const Path& path, std::string_view operation) const {
  NodePtr folder = find(path.parent_path());
  if (folder == nullptr || !folder->is_dir) refuse(operation, path, "No such file or directory");
  return folder;
}

void ModelFs::apply(Node& folder, Change change) {
  for (const auto& [name, node] : change) {
    if (node == nullptr) {
      folder.entries.erase(name);
    } else {
      folder.entries[name] = node;
    }
  }
  folder.pending.push_back(std::move(change));
  changed();
}

std::unique_ptr<OutputFile> ModelFs::create(const Path& path) {
  const NodePtr folder = folder_of(path, "create");
  if (find(path) != nullptr) refuse("create", path, "File exists");
  const auto node = std::make_shared<Node>();
  apply(*folder, {{path.filename().string(), node}});
  return std::make_unique<File>(*this, node);
}

std::unique_ptr<OutputFile> ModelFs::append(const Path& path) {
  if (const NodePtr node = find(path)) return std::make_unique<File>(*this, node);
  return create(path);
}

MappedFile ModelFs::map(const Path& path) {
  const NodePtr node = find(path);
  if (node == nullptr) throw InputError(str("[", path.string(), "] there is no such file"));
  if (node->is_dir) throw InputError(str("[", path.string(), "] is not a regular file"));
  const auto copy = std::make_shared<std::string>(node->bytes);
  return {std::shared_ptr<const std::byte>(copy, reinterpret_cast<const std::byte*>(copy->data())), copy->size()};
}

void ModelFs::rename(const Path& from, const Path& to) {
  const NodePtr folder = folder_of(from, "rename"), target = find(to);
  if (folder_of(to, "rename") != folder) throw InternalError("[ModelFs::rename] across folders: not modelled");
  const NodePtr node = find(from);
  if (node == nullptr) refuse("rename", from, "No such file or directory");
  if (target != nullptr && target->is_dir && !target->entries.empty()) refuse("rename", to, "Directory not empty");
  apply(*folder, {{from.filename().string(), nullptr}, {to.filename().string(), node}});
}

void ModelFs::sync_dir(const Path& directory) {
  const NodePtr folder = find(directory);
  if (folder == nullptr || !folder->is_dir) refuse("sync_dir", directory, "No such file or directory");
  folder->durable = folder->entries;
  folder->pending.clear();
  changed();
}

void ModelFs::make_dir(const Path& directory) {
  if (const NodePtr there = find(directory)) {
    if (!there->is_dir) refuse("make_dir", directory, "Not a directory");
    return;
  }
  if (directory.has_parent_path() && directory.parent_path() != directory) make_dir(directory.parent_path());
  const auto node = std::make_shared<Node>();
  node->is_dir = true;
  apply(*folder_of(directory, "make_dir"), {{directory.filename().string(), node}});
}

void ModelFs::unlink(const Path& file) {
  const NodePtr node = find(file);
  if (node == nullptr || node->is_dir) refuse("unlink", file, "No such file");
  apply(*folder_of(file, "unlink"), {{file.filename().string(), nullptr}});
}

void ModelFs::remove_dir(const Path& directory) {
  const NodePtr node = find(directory);
  if (node == nullptr || !node->is_dir) refuse("remove_dir", directory, "No such directory");
  if (!node->entries.empty()) refuse("remove_dir", directory, "Directory not empty");
  apply(*folder_of(directory, "remove_dir"), {{directory.filename().string(), nullptr}});
}

std::vector<std::string> ModelFs::list(const Path& directory) {
  std::vector<std::string> names;
  if (const NodePtr folder = find(directory)) {
    for (const auto& [name, node] : folder->entries) names.push_back(name);
  }
  return names;
}

bool ModelFs::exists(const Path& path) { return find(path) != nullptr; }

bool ModelFs::is_dir(const Path& path) {
  const NodePtr node = find(path);
  return node != nullptr && node->is_dir;
}

std::uint64_t ModelFs::file_size(const Path& path) {
  const NodePtr node = find(path);
  if (node == nullptr || node->is_dir) refuse("file_size", path, "No such file");
  return node->bytes.size();
}

/// The walk over all states: a list of folders and files still to be decided upon, each choice made in turn.
struct ModelFs::Crash {
  /// A node of the file system before the cut, and the one that stands for it after.
  struct Open {
    const Node* before;
    NodePtr after;
  };

  const std::function<void(ModelFs&)>& visit;
  Index most;
  Index count = 0;
  NodePtr root;

  void decide(std::vector<Open> open) {
    if (open.empty()) {
      if (++count > most) throw InternalError(str("[for_each_crash_state] more than ", most, " states"));
      ModelFs left;
      left.root_ = copy(*root);
      visit(left);
      return;
    }
    const Open next = open.back();
    open.pop_back();
    if (next.before->is_dir) {
      decide_folder(next, open, 0, next.before->durable, {});
    } else {
      decide_file(next, open);
    }
  }

  /// Change `number` and those after it happened or not; a change needs the earlier ones of the same names.
  void decide_folder(const Open& folder, const std::vector<Open>& open, std::size_t number,
                     const std::map<std::string, NodePtr>& entries, const std::set<std::string>& stuck) {
    if (number == folder.before->pending.size()) {
      std::vector<Open> further = open;
      folder.after->entries.clear();
      for (const auto& [name, node] : entries) {
        const auto after = std::make_shared<Node>();
        after->is_dir = node->is_dir;
        folder.after->entries[name] = after;
        further.push_back({node.get(), after});
      }
      decide(std::move(further));
      return;
    }
    const Change& change = folder.before->pending[number];
    const bool possible = std::ranges::none_of(change, [&](const auto& one) { return stuck.contains(one.first); });
    if (possible) {
      std::map<std::string, NodePtr> changed = entries;
      for (const auto& [name, node] : change) {
        if (node == nullptr) {
          changed.erase(name);
        } else {
          changed[name] = node;
        }
      }
      decide_folder(folder, open, number + 1, changed, stuck);
    }
    std::set<std::string> more = stuck;
    for (const auto& [name, node] : change) more.insert(name);
    decide_folder(folder, open, number + 1, entries, more);
  }

  void decide_file(const Open& file, const std::vector<Open>& open) {
    const std::string& bytes = file.before->bytes;
    const std::size_t synced = file.before->synced, half = synced + (bytes.size() - synced) / 2;
    std::set<std::string> contents = {bytes.substr(0, synced), bytes.substr(0, half), bytes};
    for (const std::size_t real : {synced, half})
      contents.insert(bytes.substr(0, real) + std::string(bytes.size() - real, '\0'));
    for (const std::string& one : contents) {
      file.after->bytes = one;
      decide(open);
    }
  }

  /// All durable: later states are made from the same nodes.
  static NodePtr copy(const Node& node) {
    const auto made = std::make_shared<Node>();
    made->is_dir = node.is_dir;
    made->bytes = node.bytes;
    made->synced = node.bytes.size();
    for (const auto& [name, entry] : node.entries) made->entries[name] = copy(*entry);
    made->durable = made->entries;
    return made;
  }
};

Index ModelFs::for_each_crash_state(const std::function<void(ModelFs&)>& visit, Index most) const {
  Crash crash{.visit = visit, .most = most, .root = std::make_shared<Node>()};
  crash.root->is_dir = true;
  crash.decide({{root_.get(), crash.root}});
  return crash.count;
}

}  // namespace megalith::io
