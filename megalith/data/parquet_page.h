#pragma once
#include <cstdint>
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

/// Unpacks `size` bytes from `packed`; throws InputError through `where` for damage and for another size. Memory grows
/// with what comes out, not with what `size` claims.
std::string parquet_unpack(ParquetCodec codec, std::string_view packed, std::uint64_t size, const io::Reader& where);

/// Appends `count` numbers of the hybrid of runs and bit-packed groups, each of `width` bits.
void read_hybrid(io::Reader& in, int width, std::size_t count, std::vector<std::uint32_t>& out);

/// The strings of a page. They point into the page, or, for delta_byte_array, into `made`.
class ParquetStrings {
 public:
  /// `count` strings; throws InputError for what does not fit the page.
  static std::vector<std::string_view> plain(io::Reader& in, std::size_t count);
  static std::vector<std::string_view> from_dictionary(io::Reader& in, std::size_t count,
                                                       const std::vector<std::string_view>& dictionary);
  static std::vector<std::string_view> delta_length(io::Reader& in, std::size_t count);
  /// `most_bytes` bounds what the strings take together: prefixes repeat.
  static std::vector<std::string_view> delta(io::Reader& in, std::size_t count, std::string& made,
                                             std::uint64_t most_bytes);
};

}  // namespace megalith::data
