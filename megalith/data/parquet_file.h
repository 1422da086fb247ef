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

/// Some values of one column: strings that point into memory of their own.
struct ParquetValues {
  std::vector<std::string_view> values{};
  std::vector<std::uint64_t> rows{};  ///< of each value, counted from 1 in the file; rows that are null are left out
  std::shared_ptr<const void> owner{};
};

/// A column of strings of a Parquet file: flat, required or optional; pages v1 and v2; PLAIN, dictionary,
/// DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY; uncompressed, snappy, gzip and zstd. What the file says about sizes is
/// proved before memory is taken for it; page checksums are compared where there are any. Memory: one page and its
/// dictionary, unpacked.
/// Source: github.com/apache/parquet-format, README.md, Encodings.md and parquet.thrift.
class ParquetFile {
 public:
  /// Refuses pages of more unpacked bytes than this and than 8 documents of the most bytes that one may have.
  static constexpr std::uint64_t kMaxPageBytes = std::uint64_t{128} << 20;
  /// Throws InputError when the file is no Parquet file, lacks the column (the nearest name is said), or has it in a
  /// form that is not read.
  ParquetFile(io::Fs& fs, const io::Path& file, std::string_view column,
              std::uint64_t max_document_bytes = kDefaultMaxLine);
  ~ParquetFile();

  /// The next values of a page, about a megabyte of them; nothing at the end. A few bytes of a file can stand for any
  /// number of equal values, so a page is not handed out as a whole. Throws InputError naming the place of damage.
  std::optional<ParquetValues> next();
  std::uint64_t stored_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith::data
