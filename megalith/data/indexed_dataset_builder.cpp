#include <algorithm>
#include <cstring>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/indexed_dataset.h"
#include "megalith/data/indexed_format.h"
#include "megalith/io/remove_if_there.h"
#include "megalith/io/save_protocol.h"

namespace megalith::data {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class T>
void append_ids(std::vector<std::byte>& bytes, std::span<const std::int32_t> ids) {
  const std::size_t at = bytes.size();
  bytes.resize(at + ids.size() * sizeof(T));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const T id = static_cast<T>(ids[i]);
    std::memcpy(bytes.data() + at + i * sizeof id, &id, sizeof id);
  }
}

/// Collects small values into large writes.
class Buffered {
 public:
  explicit Buffered(io::OutputFile& file) : file_(file) {}
  template <class T>
  void put(T value) {
    append(bytes_, value);
    if (bytes_.size() >= kBufferBytes) flush();
  }
  void flush() {
    file_.write(bytes_);
    bytes_.clear();
  }

 private:
  io::OutputFile& file_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void remove_unpublished(io::Fs& fs, const io::Path& prefix) {
  const io::Path folder = prefix.has_parent_path() ? prefix.parent_path() : io::Path(".");
  const auto is_unique = [](std::string_view text) {
    return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
  };
  for (const std::string& name : fs.list(folder))
    for (const io::Path& path : {bin_path(prefix), idx_path(prefix)}) {
      const std::string staged = path.filename().string() + ".tmp-";
      if (name.starts_with(staged) && is_unique(std::string_view(name).substr(staged.size()))) fs.unlink(folder / name);
    }
}

IndexedDatasetBuilder::IndexedDatasetBuilder(io::Fs& fs, const io::Path& prefix, const Options& options)
    : fs_(fs), prefix_(prefix), options_(options), type_(id_type_for(options.vocab_size)) {
  refuse_existing();
  if (prefix.has_parent_path()) fs.make_dir(prefix.parent_path());
  if (options.writes == Writes::nothing) return;
  const std::string suffix = io::temporary_suffix();
  staged_bin_ = bin_path(prefix) += suffix;
  staged_idx_ = idx_path(prefix) += suffix;
  bin_ = fs.create(staged_bin_);
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  if (!bin_) return;
  io::remove_if_there(fs_, staged_bin_);
  io::remove_if_there(fs_, staged_idx_);
}

void IndexedDatasetBuilder::refuse_existing() const {
  if (options_.existing == Existing::replace) return;
  for (const io::Path& path : {idx_path(prefix_), bin_path(prefix_)}) {
    if (fs_.exists(path))
      throw ConfigError(str("output ", path.string(), " exists: name another, or pass --overwrite"));
  }
}

void IndexedDatasetBuilder::add(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= options_.vocab_size)
      throw InternalError(str("[", prefix_.string(), "] id ", id, ": must be from 0 to ", options_.vocab_size - 1));
  while (!ids.empty()) {
    if (open_length_ == options_.longest_sequence) close_sequence();
    const std::size_t room = static_cast<std::size_t>(options_.longest_sequence - open_length_);
    const std::span<const std::int32_t> some =
        ids.first(std::min({ids.size(), room, kBufferBytes / sizeof(std::int32_t)}));
    if (type_ == IdType::u16)
      append_ids<std::uint16_t>(buffer_, some);
    else
      append_ids<std::int32_t>(buffer_, some);
    open_length_ += static_cast<std::int32_t>(some.size());
    num_tokens_ += static_cast<Index>(some.size());
    ids = ids.subspan(some.size());
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

void IndexedDatasetBuilder::flush() {
  if (bin_) bin_->write(buffer_);
  buffer_.clear();
}

void IndexedDatasetBuilder::end_sequence() {
  if (open_length_ > 0) close_sequence();
}

void IndexedDatasetBuilder::close_sequence() {
  lengths_.push_back(open_length_);
  ends_document_.push_back(false);
  open_length_ = 0;
}

void IndexedDatasetBuilder::end_document() {
  const bool has_sequences = !ends_document_.empty() && !ends_document_.back();
  if (open_length_ > 0 || !has_sequences) close_sequence();
  ends_document_.back() = true;
  ++num_documents_;
}

void IndexedDatasetBuilder::write_index(io::OutputFile& file) const {
  file.write(kIndexMagic);
  Buffered out(file);
  out.put(kIndexVersion);
  out.put(static_cast<std::uint8_t>(type_));
  out.put(static_cast<std::uint64_t>(lengths_.size()));
  out.put(static_cast<std::uint64_t>(num_documents_ + 1));  // boundaries
  for (const std::int32_t length : lengths_) out.put(length);
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    out.put(pointer);
    pointer += length * static_cast<std::int64_t>(id_bytes(type_));
  }
  out.put(std::int64_t{0});
  for (std::size_t i = 0; i < ends_document_.size(); ++i)
    if (ends_document_[i]) out.put(static_cast<std::int64_t>(i + 1));
  out.flush();
}

void IndexedDatasetBuilder::finish() {
  if (open_length_ != 0) throw InternalError(str("[", prefix_.string(), "] finish: a document is still open"));
  flush();
  if (!bin_) return;
  bin_->sync();
  bin_->close();
  const std::unique_ptr<io::OutputFile> idx = fs_.create(staged_idx_);
  write_index(*idx);
  idx->sync();
  idx->close();
  // There is never an index next to the .bin of another: the old index goes first, the new one comes last.
  const io::Path folder = prefix_.parent_path();
  refuse_existing();  // checked again: another build may have ended first
  if (fs_.exists(idx_path(prefix_))) {
    fs_.unlink(idx_path(prefix_));
    fs_.sync_dir(folder);
  }
  std::vector<io::Path> named;
  const auto publish = [&](const io::Path& staged, const io::Path& path) {
    fs_.rename(staged, path);
    named.push_back(path);
    fs_.sync_dir(folder);
  };
  try {
    publish(staged_bin_, bin_path(prefix_));
    publish(staged_idx_, idx_path(prefix_));
  } catch (const Error&) {
    for (const io::Path& path : named) io::remove_if_there(fs_, path);
    throw;
  }
}

}  // namespace megalith::data
