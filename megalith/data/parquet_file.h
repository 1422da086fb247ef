#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/io/fs.h"

namespace megalith::data {

/// Values of one column: strings, and the memory that they point into.
struct ParquetValues {
  std::vector<std::string_view> values{};
  std::vector<std::uint64_t> rows{};  ///< the row of each value, counted from 1 in the file; null rows are left out
  std::shared_ptr<const void> owner{};
};

/// Reads a column of strings of a Parquet file: flat, required or optional; pages v1 and v2; PLAIN, dictionary,
/// DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY; uncompressed, snappy, gzip and zstd. Sizes in the file are checked
/// before memory is taken for them. Page checksums are compared where the file has them. Memory: one page and its
/// dictionary, unpacked.
/// Source: github.com/apache/parquet-format, README.md, Encodings.md and parquet.thrift.
class ParquetFile {
 public:
  /// A page is refused if it unpacks to more bytes than this, and to more than 8 documents of the largest allowed size.
  static constexpr std::uint64_t kMaxPageBytes = std::uint64_t{128} << 20;
  /// Throws InputError if the file is no Parquet file, lacks the column (the error names the nearest one), or has it
  /// in a form that is not read.
  ParquetFile(io::Fs& fs, const io::Path& file, std::string_view column,
              std::uint64_t max_document_bytes = kDefaultMaxLine);
  ~ParquetFile();

  /// The next values of a page, about a megabyte of them; nothing at the end. A few bytes of a file can stand for any
  /// number of equal values, so a page is not returned as a whole. Throws InputError naming the place of damage.
  std::optional<ParquetValues> next();
  std::uint64_t stored_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith::data
