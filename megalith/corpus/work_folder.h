#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/corpus/record_file.h"
#include "megalith/io/fs.h"
#include "megalith/io/run_lock.h"

namespace megalith::corpus {

/// Numbers that a product carries in addition to its records: documents, bytes, ...
using ProductNumbers = std::array<std::uint64_t, 8>;

/// The folder in which a run keeps the products of its stages, so that a killed run can resume. Every product is a file
/// of records that appears whole or not at all. `run.json` identifies the run of the folder.
class WorkFolder {
 public:
  /// Makes the folder, or opens it. `settings` are all that the run's result depends on. Throws CheckpointError
  /// (refused) with the first setting that differs when the folder belongs to another run; IoError.
  WorkFolder(io::Fs& fs, io::Path folder, const nlohmann::ordered_json& settings);
  /// Whether `folder` holds the work of a run.
  static bool is_one(io::Fs& fs, const io::Path& folder);

  io::Fs& fs() { return fs_; }
  bool has(const std::string& name) { return fs_.exists(folder_ / name); }
  /// The prefix of the files of a sort for this product.
  io::Path prefix(const std::string& name) const { return folder_ / name; }
  /// Removes the files of an earlier attempt at a product.
  void remove_leftovers(const std::string& name);

  /// Publishes the product `name`: make(add) calls add(record) for each of its records and returns its numbers.
  template <class Record, class Make>
  void publish(const std::string& name, const Make& make) {
    const io::Path staged = folder_ / (name + kStaged);
    RecordWriter<Record> writer(fs_, staged);
    const ProductNumbers numbers = make(writer);
    io::OutputFile& file = writer.finish();
    finish(name, file, writer.records() * sizeof(Record), writer.checksum(), numbers);
  }

  /// A published product.
  struct Product {
    io::Path path;
    std::uint64_t bytes = 0;  ///< size of its records
    ProductNumbers numbers{};
    template <class Record>
    std::uint64_t records() const {
      return bytes / sizeof(Record);
    }
  };
  /// Throws DamagedWork when the file is missing, incomplete, or not what was written. The first call for a product
  /// reads it. Any number of threads may call it at once.
  Product open(const std::string& name);
  template <class Record>
  RecordReader<Record> read(const Product& product, std::size_t window_bytes) {
    return {fs_, product.path, 0, product.records<Record>(), window_bytes};
  }

  /// Removes every file of the run, and the folder unless it has foreign files. run.json is removed last.
  void remove_all();

 private:
  static constexpr const char* kStaged = ".tmp";
  void finish(const std::string& name, io::OutputFile& file, std::uint64_t bytes, const io::Hash128& checksum,
              const ProductNumbers& numbers);
  Product verified(const std::string& name);

  io::Fs& fs_;
  io::Path folder_;
  std::mutex mutex_;
  std::map<std::string, Product> opened_;  // products whose bytes were compared
};

/// The right to do one share of a run's work. No other process does the same one, and none works with another number of
/// shares. Throws IoError that names the process that does.
class ShareLock {
 public:
  ShareLock(io::Fs& fs, const io::Path& folder, int rank, int count);

 private:
  io::OutputLock lock_;
};

}  // namespace megalith::corpus
