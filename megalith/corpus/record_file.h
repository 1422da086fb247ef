#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/checksum.h"
#include "megalith/io/fs.h"

namespace megalith::corpus {

// Files of records of one trivially copyable type, in their memory layout. They serve one run on machines of one kind,
// and are never an exchange format.

/// A file of the work folder has other contents than were written.
class DamagedWork : public InputError {
 public:
  explicit DamagedWork(const io::Path& file, std::string_view how = "is damaged")
      : InputError(str("[", file.string(), "] ", how, ": remove the work folder and start again")) {}
};

/// Appends records to a file, some at a time.
template <class Record>
class RecordWriter {
  static_assert(std::is_trivially_copyable_v<Record>);

 public:
  RecordWriter(io::Fs& fs, const io::Path& path) : file_(fs.create(path)) { buffer_.reserve(kBuffered); }
  void add(const Record& record) {
    buffer_.push_back(record);
    ++records_;
    if (buffer_.size() == kBuffered) flush();
  }
  void add(std::span<const Record> records) {
    flush();
    write(records);
    records_ += records.size();
  }
  std::uint64_t records() const { return records_; }
  /// Call it after the last record.
  io::OutputFile& finish() {
    flush();
    return *file_;
  }
  /// The checksum of the records, after finish(). Call it once.
  io::Hash128 checksum() { return sums_.finish().digest(); }

 private:
  static constexpr std::size_t kBuffered = std::max<std::size_t>(1, (std::size_t{256} << 10) / sizeof(Record));
  void flush() {
    if (!buffer_.empty()) write(buffer_);
    buffer_.clear();
  }
  void write(std::span<const Record> records) {
    sums_.update(std::as_bytes(records));
    file_->write(std::as_bytes(records));
  }

  std::unique_ptr<io::OutputFile> file_;
  std::vector<Record> buffer_;
  std::uint64_t records_ = 0;
  io::BlockChecksums sums_;
};

/// Records first .. end - 1 of a file, one after the other. Touched pages of a mapping count as memory of the process,
/// so the file is remapped after every `window_bytes`.
template <class Record>
class RecordReader {
 public:
  RecordReader(io::Fs& fs, io::Path path, std::uint64_t first, std::uint64_t end, std::size_t window_bytes)
      : fs_(&fs),
        path_(std::move(path)),
        at_(first),
        end_(end),
        window_(std::max<std::uint64_t>(1, window_bytes / sizeof(Record))) {}

  bool at_end() const { return at_ == end_; }
  std::uint64_t remaining() const { return end_ - at_; }
  /// The present record, not at the end. Valid until next().
  const Record& peek() {
    if (at_ >= mapped_end_) map();
    return records_[at_];
  }
  void next() { ++at_; }

 private:
  void map() {
    file_ = fs_->map(path_);
    if (file_.bytes().size() / sizeof(Record) < end_)
      throw DamagedWork(path_, str("has ", file_.bytes().size(), " bytes, must have ", end_ * sizeof(Record)));
    records_ = reinterpret_cast<const Record*>(file_.bytes().data());
    mapped_end_ = std::min(end_, at_ + window_);
  }

  io::Fs* fs_;
  io::Path path_;
  io::MappedFile file_;
  const Record* records_ = nullptr;
  std::uint64_t at_ = 0, end_ = 0, mapped_end_ = 0;
  std::uint64_t window_ = 1;
};

}  // namespace megalith::corpus
