#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/reader.h"

namespace megalith::data {

enum class ParquetCodec : int { none = 0, snappy = 1, gzip = 2, zstd = 6 };
enum class ParquetEncoding : int {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  delta_binary_packed = 5,
  delta_length_byte_array = 6,
  delta_byte_array = 7,
  rle_dictionary = 8
};

/// Unpacks `size` bytes from `packed`. Throws InputError through `where` for damage and for another size. Memory grows
/// with the output, not with the claimed `size`.
std::string parquet_unpack(ParquetCodec codec, std::string_view packed, std::uint64_t size, const io::Reader& where);

/// Numbers of `width` bits in Parquet's hybrid of runs and bit-packed groups. They are read one by one, because a few
/// bytes can stand for any number of them.
class HybridNumbers {
 public:
  HybridNumbers(const io::Reader& in, int width) : in_(in), bits_(static_cast<unsigned>(width)) {}
  /// Throws InputError where the bytes end or break a rule.
  std::uint32_t next();

 private:
  void start_run();

  io::Reader in_;
  unsigned bits_;
  std::uint64_t left_ = 0;  // numbers left in the run
  bool is_packed_ = false;
  std::uint32_t value_ = 0;              // the number of a run
  std::span<const std::byte> packed_{};  // bytes of groups
  std::size_t at_ = 0;
  std::uint64_t held_ = 0;
  unsigned have_ = 0;
};

/// The strings of a page, one by one: a page can hold far more than its bytes.
class ParquetStrings {
 public:
  virtual ~ParquetStrings() = default;
  /// The next string. It points into the page or the dictionary; if is_made(), it is valid until the next call. Call
  /// it once per string of the page. Throws InputError for a value that does not fit the page.
  virtual std::string_view next() = 0;
  virtual bool is_made() const { return false; }
};
/// Reads `count` strings of `in`, the bytes after the levels. Returns nullptr for another encoding. The dictionary
/// must outlive the result.
std::unique_ptr<ParquetStrings> parquet_strings(ParquetEncoding encoding, const io::Reader& in, std::size_t count,
                                                const std::vector<std::string_view>& dictionary);

}  // namespace megalith::data
