#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::io {

/// A file system in memory that knows what a power cut may leave: for tests of what is written and synced, and in which
/// order. It promises no more than POSIX does, so it is harsher than ext4 or XFS:
/// - a file's bytes are durable up to the length of its last sync(); of what was appended since, nothing may be there,
///   half of it or all of it, and with its full length zeros for all or half of the contents;
/// - a name (create, make_dir, rename, unlink, remove_dir) is durable after sync_dir() of its folder; of what happened
///   since, any part may be there in which no name runs ahead of its own history; a rename happens whole.
/// Paths are used as they are given: no links, no working folder; both ends of a rename lie in one folder (else
/// InternalError). Not thread-safe.
class ModelFs final : public Fs {
 public:
  ModelFs();
  ~ModelFs() override;

  std::unique_ptr<OutputFile> create(const Path& path) override;
  std::unique_ptr<OutputFile> append(const Path& path) override;
  MappedFile map(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void sync_dir(const Path& directory) override;
  void make_dir(const Path& directory) override;
  void unlink(const Path& file) override;
  void remove_dir(const Path& directory) override;
  std::vector<std::string> list(const Path& directory) override;
  bool exists(const Path& path) override;
  bool is_dir(const Path& path) override;
  bool is_link(const Path&) override { return false; }
  std::uint64_t file_size(const Path& path) override;
  std::uint64_t free_bytes(const Path&) override { return kUnknownBytes; }

  /// Called after every operation that changes something, durable or not.
  void on_change(std::function<void()> observer) { observer_ = std::move(observer); }

  /// Visits every state that a power cut at this moment may leave, each as a file system on which all is durable.
  /// Throws InternalError when there are more than `most`. Returns their number.
  Index for_each_crash_state(const std::function<void(ModelFs&)>& visit, Index most = 100000) const;

 private:
  struct Node;
  class File;
  using NodePtr = std::shared_ptr<Node>;
  /// What names of one folder become; an empty node: the name goes.
  using Change = std::map<std::string, NodePtr>;
  struct Node {
    bool is_dir = false;
    std::string bytes;                       // of a file
    std::size_t synced = 0;                  // its durable length
    std::map<std::string, NodePtr> entries;  // of a folder, as programs see it
    std::map<std::string, NodePtr> durable;  // and as of the last sync_dir()
    std::vector<Change> pending;             // what happened to it since, in order
  };
  struct Crash;

  NodePtr find(const Path& path) const;
  NodePtr folder_of(const Path& path, std::string_view operation) const;
  void apply(Node& folder, Change change);
  void changed() const {
    if (observer_) observer_();
  }

  NodePtr root_;
  std::function<void()> observer_;
};

}  // namespace megalith::io
