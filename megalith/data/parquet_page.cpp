#include "megalith/data/parquet_page.h"

#include <algorithm>
#include <limits>
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

/// Extends `out` for another step of a decoder, up to `size` and one byte, so that more than the claim is seen.
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
    if (stream.avail_out == 0) where.fail("page", "holds more bytes than its header has");
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
    if (to.pos == to.size) where.fail("page", "holds more bytes than its header has");
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
  // No element of snappy's format unpacks 2 bytes to more than 64. So a false size is seen before memory is taken.
  if (!snappy::GetUncompressedLength(packed.data(), packed.size(), &claimed) || claimed != size ||
      claimed > 32 * packed.size() + 64)
    where.fail("page", "its snappy data has another size than in the header");
  std::string out(claimed, '\0');
  if (!snappy::RawUncompress(packed.data(), packed.size(), out.data()))
    where.fail("page", "its snappy data is damaged");
  return out;
}

/// Lengths packed as differences, in blocks of miniblocks.
class DeltaLengths {
 public:
  static std::vector<std::uint32_t> read(io::Reader& in, std::size_t count) {
    const std::uint64_t block_size = thrift_varint(in), miniblocks = thrift_varint(in), total = thrift_varint(in);
    if (block_size == 0 || block_size > (1u << 20) || miniblocks == 0 || block_size % miniblocks != 0 ||
        block_size / miniblocks % 8 != 0)
      in.fail("delta block", "must have miniblocks of a multiple of 8 numbers, and at most 2^20 numbers");
    if (total != count) in.fail("delta block", str("has ", total, " numbers, the page ", count, " values"));
    std::uint64_t value = static_cast<std::uint64_t>(thrift_zigzag(in));
    std::vector<std::uint32_t> out;
    const auto add = [&] {
      if (value > std::numeric_limits<std::uint32_t>::max()) in.fail("length", "must be below 2^32");
      out.push_back(static_cast<std::uint32_t>(value));
    };
    if (total > 0) add();
    while (out.size() < total) {
      const auto min_value = static_cast<std::uint64_t>(thrift_zigzag(in));
      const std::span<const std::byte> widths = in.bytes(miniblocks, "bit widths");
      for (std::size_t m = 0; m < miniblocks && out.size() < total; ++m) {
        const auto width = static_cast<unsigned>(widths[m]);
        if (width > 64) in.fail("bit width", "must be at most 64");
        const std::uint64_t numbers = block_size / miniblocks;
        const std::span<const std::byte> packed = in.bytes(numbers / 8 * width, "miniblock");
        for (std::uint64_t i = 0; i < numbers && out.size() < total; ++i) {
          value += min_value + bits(packed, i * width, width);
          add();
        }
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

class PlainStrings final : public ParquetStrings {
 public:
  PlainStrings(const io::Reader& in, std::size_t count) : in_(in) { in_.count(count, 4, "values"); }
  std::string_view next() override { return in_.text(in_.u32("length of a value"), "value"); }

 private:
  io::Reader in_;
};

class DictionaryStrings final : public ParquetStrings {
 public:
  DictionaryStrings(io::Reader in, const std::vector<std::string_view>& dictionary)
      : width_(width_of(in)), in_(in), indexes_(in, width_), dictionary_(dictionary) {}
  std::string_view next() override {
    const std::uint32_t index = indexes_.next();
    if (index >= dictionary_.size())
      in_.fail("dictionary index", str("is ", index, ", the dictionary has ", dictionary_.size(), " entries"));
    return dictionary_[index];
  }

 private:
  static int width_of(io::Reader& in) {
    const int width = in.u8("bit width");
    if (width > 32) in.fail("bit width", "must be at most 32");
    return width;
  }
  int width_;
  io::Reader in_;  // after the width, for errors
  HybridNumbers indexes_;
  const std::vector<std::string_view>& dictionary_;
};

class DeltaLengthStrings final : public ParquetStrings {
 public:
  DeltaLengthStrings(const io::Reader& in, std::size_t count) : in_(in), lengths_(DeltaLengths::read(in_, count)) {}
  std::string_view next() override { return in_.text(lengths_[at_++], "value"); }

 private:
  io::Reader in_;
  std::vector<std::uint32_t> lengths_;
  std::size_t at_ = 0;
};

/// Each string is a prefix of the previous one and a suffix.
class DeltaStrings final : public ParquetStrings {
 public:
  DeltaStrings(io::Reader in, std::size_t count)
      : prefixes_(DeltaLengths::read(in, count)), in_(in), suffixes_(in, count) {}
  std::string_view next() override {
    const std::uint32_t prefix = prefixes_[at_++];
    if (prefix > last_.size()) in_.fail("prefix", "is longer than the value before");
    last_.resize(prefix);
    last_ += suffixes_.next();
    return last_;
  }
  bool is_made() const override { return true; }

 private:
  std::vector<std::uint32_t> prefixes_;
  io::Reader in_;
  DeltaLengthStrings suffixes_;
  std::string last_;
  std::size_t at_ = 0;
};

}  // namespace

std::string parquet_unpack(ParquetCodec codec, std::string_view packed, std::uint64_t size, const io::Reader& where) {
  std::string out = codec == ParquetCodec::none   ? std::string(packed)
                    : codec == ParquetCodec::gzip ? unpack_gzip(packed, size, where)
                    : codec == ParquetCodec::zstd ? unpack_zstd(packed, size, where)
                                                  : unpack_snappy(packed, size, where);
  if (out.size() != size) where.fail("page", str("unpacks to ", out.size(), " bytes, but its header has ", size));
  return out;
}

void HybridNumbers::start_run() {
  const std::uint64_t head = thrift_varint(in_);
  is_packed_ = (head & 1) != 0;
  if (!is_packed_) {
    value_ = 0;
    for (unsigned byte = 0; byte < (bits_ + 7) / 8; ++byte) value_ |= std::uint32_t{in_.u8("run")} << 8 * byte;
    left_ = head >> 1;
    if (left_ == 0) in_.fail("run", "must have at least one number");
    return;
  }
  const std::uint64_t groups = head >> 1;
  if (groups == 0) in_.fail("bit-packed run", "must have at least one group");
  packed_ = in_.bytes(in_.count(groups, bits_, "bit-packed run") * bits_, "bit-packed run");
  left_ = 8 * groups;
  at_ = 0;
  held_ = have_ = 0;
}

std::uint32_t HybridNumbers::next() {
  if (left_ == 0) start_run();
  --left_;
  if (!is_packed_) return value_;
  while (have_ < bits_) {
    held_ |= static_cast<std::uint64_t>(packed_[at_++]) << have_;
    have_ += 8;
  }
  const auto number = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits_) - 1));
  held_ >>= bits_;
  have_ -= bits_;
  return number;
}

std::unique_ptr<ParquetStrings> parquet_strings(ParquetEncoding encoding, const io::Reader& in, std::size_t count,
                                                const std::vector<std::string_view>& dictionary) {
  switch (encoding) {
    case ParquetEncoding::plain:
      return std::make_unique<PlainStrings>(in, count);
    case ParquetEncoding::plain_dictionary:
    case ParquetEncoding::rle_dictionary:
      return std::make_unique<DictionaryStrings>(in, dictionary);
    case ParquetEncoding::delta_length_byte_array:
      return std::make_unique<DeltaLengthStrings>(in, count);
    case ParquetEncoding::delta_byte_array:
      return std::make_unique<DeltaStrings>(in, count);
    default:
      return nullptr;
  }
}

}  // namespace megalith::data
