#include "megalith/data/parquet_page.h"

#include <algorithm>
#include <memory>

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/thrift_compact.h"

namespace megalith::data {
namespace {

constexpr std::size_t kFirstGuess = std::size_t{1} << 20;

/// Makes `out` longer for another step of a decoder, up to `size` and one byte: more than was claimed is seen.
void grow(std::string& out, std::size_t written, std::uint64_t size) {
  if (written < out.size()) return;
  out.resize(static_cast<std::size_t>(
      std::min<std::uint64_t>(size + 1, std::max<std::uint64_t>(kFirstGuess, 2 * out.size()))));
}

std::string unpack_gzip(std::string_view packed, std::uint64_t size, const io::Reader& where) {
  z_stream stream{};
  constexpr int kGzipOrZlib = 32;
  if (inflateInit2(&stream, MAX_WBITS + kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string out;
  std::size_t written = 0;
  for (int result = Z_OK; result != Z_STREAM_END;) {
    grow(out, written, size);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    stream.avail_out = static_cast<uInt>(out.size() - written);
    if (stream.avail_out == 0) where.fail("page", "holds more than its header says");
    result = inflate(&stream, Z_NO_FLUSH);
    written = out.size() - stream.avail_out;
    if (result != Z_OK && result != Z_STREAM_END) where.fail("page", "its gzip data is damaged");
  }
  out.resize(written);
  return out;
}

std::string unpack_zstd(std::string_view packed, std::uint64_t size, const io::Reader& where) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  std::string out;
  std::size_t written = 0;
  for (std::size_t result = 1; result != 0;) {
    grow(out, written, size);
    ZSTD_outBuffer to{out.data(), out.size(), written};
    if (to.pos == to.size) where.fail("page", "holds more than its header says");
    const std::size_t taken = in.pos;
    result = ZSTD_decompressStream(stream.get(), &to, &in);
    if (ZSTD_isError(result) != 0) where.fail("page", str("its zstd data is damaged: ", ZSTD_getErrorName(result)));
    if (result != 0 && in.pos == taken && to.pos == written) where.fail("page", "its zstd data is cut");
    written = to.pos;
  }
  out.resize(written);
  return out;
}

std::string unpack_snappy(std::string_view packed, std::uint64_t size, const io::Reader& where) {
  std::size_t claimed = 0;
  // No element of snappy's format gives more than 64 bytes for 2: so a size that lies is seen before memory is taken.
  if (!snappy::GetUncompressedLength(packed.data(), packed.size(), &claimed) || claimed != size ||
      claimed > 32 * packed.size() + 64)
    where.fail("page", "its snappy data has another size than the header says");
  std::string out(claimed, '\0');
  if (!snappy::RawUncompress(packed.data(), packed.size(), out.data()))
    where.fail("page", "its snappy data is damaged");
  return out;
}

/// Numbers packed as differences, in blocks of miniblocks.
class DeltaNumbers {
 public:
  static std::vector<std::uint64_t> read(io::Reader& in, std::size_t count) {
    const std::uint64_t block_size = thrift_varint(in), miniblocks = thrift_varint(in), total = thrift_varint(in);
    if (block_size == 0 || block_size > (1u << 20) || miniblocks == 0 || block_size % miniblocks != 0 ||
        block_size / miniblocks % 8 != 0)
      in.fail("delta block", "must have miniblocks of a multiple of 8 numbers, and at most 2^20 numbers");
    if (total != count) in.fail("delta block", str("has ", total, " numbers, the page ", count, " values"));
    std::uint64_t value = static_cast<std::uint64_t>(thrift_zigzag(in));
    std::vector<std::uint64_t> out;
    if (total > 0) out.push_back(value);
    while (out.size() < total) {
      const auto least = static_cast<std::uint64_t>(thrift_zigzag(in));
      const std::span<const std::byte> widths = in.bytes(miniblocks, "bit widths");
      for (std::size_t m = 0; m < miniblocks && out.size() < total; ++m) {
        const auto width = static_cast<unsigned>(widths[m]);
        if (width > 64) in.fail("bit width", "must be at most 64");
        const std::uint64_t numbers = block_size / miniblocks;
        const std::span<const std::byte> packed = in.bytes(numbers / 8 * width, "miniblock");
        for (std::uint64_t i = 0; i < numbers && out.size() < total; ++i)
          out.push_back(value += least + bits(packed, i * width, width));
      }
    }
    return out;
  }

 private:
  static std::uint64_t bits(std::span<const std::byte> packed, std::uint64_t at, unsigned width) {
    std::uint64_t value = 0;
    for (unsigned done = 0; done < width;) {
      const std::uint64_t bit = at + done;
      const unsigned shift = bit % 8, taken = std::min(8 - shift, width - done);
      const std::uint64_t part = static_cast<std::uint64_t>(packed[bit / 8]) >> shift & ((1u << taken) - 1);
      value |= part << done;
      done += taken;
    }
    return value;
  }
};

}  // namespace

std::string parquet_unpack(ParquetCodec codec, std::string_view packed, std::uint64_t size, const io::Reader& where) {
  std::string out = codec == ParquetCodec::none   ? std::string(packed)
                    : codec == ParquetCodec::gzip ? unpack_gzip(packed, size, where)
                    : codec == ParquetCodec::zstd ? unpack_zstd(packed, size, where)
                                                  : unpack_snappy(packed, size, where);
  if (out.size() != size) where.fail("page", str("unpacks to ", out.size(), " bytes, its header says ", size));
  return out;
}

void read_hybrid(io::Reader& in, int width, std::size_t count, std::vector<std::uint32_t>& out) {
  const std::size_t end = out.size() + count;
  const auto bits = static_cast<unsigned>(width);
  while (out.size() < end) {
    const std::uint64_t head = thrift_varint(in);
    if ((head & 1) == 0) {
      std::uint32_t value = 0;
      for (unsigned byte = 0; byte < (bits + 7) / 8; ++byte) value |= std::uint32_t{in.u8("run")} << 8 * byte;
      const std::uint64_t length = std::min<std::uint64_t>(head >> 1, end - out.size());
      if (length == 0) in.fail("run", "must have at least one number");
      out.insert(out.end(), length, value);
    } else {
      const std::uint64_t groups = head >> 1;
      if (groups == 0) in.fail("bit-packed run", "must have at least one group");
      const std::span<const std::byte> packed =
          in.bytes(in.count(groups, bits, "bit-packed run") * bits, "bit-packed run");
      std::uint64_t held = 0;
      unsigned have = 0;
      std::size_t at = 0;
      for (std::uint64_t i = 0; i < 8 * groups && out.size() < end; ++i) {
        while (have < bits) {
          held |= static_cast<std::uint64_t>(packed[at++]) << have;
          have += 8;
        }
        out.push_back(static_cast<std::uint32_t>(held & ((std::uint64_t{1} << bits) - 1)));
        held >>= bits;
        have -= bits;
      }
    }
  }
}

std::vector<std::string_view> ParquetStrings::plain(io::Reader& in, std::size_t count) {
  in.count(count, 4, "values");
  std::vector<std::string_view> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back(in.text(in.u32("length of a value"), "value"));
  return out;
}

std::vector<std::string_view> ParquetStrings::from_dictionary(io::Reader& in, std::size_t count,
                                                              const std::vector<std::string_view>& dictionary) {
  const int width = in.u8("bit width");
  if (width > 32) in.fail("bit width", "must be at most 32");
  std::vector<std::uint32_t> indexes;
  read_hybrid(in, width, count, indexes);
  std::vector<std::string_view> out;
  out.reserve(count);
  for (const std::uint32_t index : indexes) {
    if (index >= dictionary.size())
      in.fail("dictionary index", str("is ", index, ", the dictionary has ", dictionary.size(), " entries"));
    out.push_back(dictionary[index]);
  }
  return out;
}

std::vector<std::string_view> ParquetStrings::delta_length(io::Reader& in, std::size_t count) {
  std::vector<std::string_view> out;
  for (const std::uint64_t length : DeltaNumbers::read(in, count)) out.push_back(in.text(length, "value"));
  return out;
}

std::vector<std::string_view> ParquetStrings::delta(io::Reader& in, std::size_t count, std::string& made,
                                                    std::uint64_t most_bytes) {
  const std::vector<std::uint64_t> prefixes = DeltaNumbers::read(in, count);
  const std::vector<std::string_view> suffixes = delta_length(in, count);
  std::uint64_t total = 0, before = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (prefixes[i] > before) in.fail("prefix", "is longer than the value before");
    before = prefixes[i] + suffixes[i].size();
    total += before;
    if (total > most_bytes) in.fail("values", str("take over ", most_bytes, " bytes"));
  }
  made.resize(static_cast<std::size_t>(total));
  std::vector<std::string_view> out;
  std::size_t at = 0;
  std::string_view last;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = prefixes[i] + suffixes[i].size();
    char* const to = made.data() + at;
    std::copy_n(last.data(), prefixes[i], to);
    std::copy_n(suffixes[i].data(), suffixes[i].size(), to + prefixes[i]);
    last = {to, size};
    out.push_back(last);
    at += size;
  }
  return out;
}

}  // namespace megalith::data
