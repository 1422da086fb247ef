// Compressed files: megalith/data/byte_source.h against each library's calls for bytes that lie in memory as a whole.
#include <algorithm>
#include <optional>

#include "megalith/data/byte_source.h"
#include "megalith/data/decompress.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/one_file.h"
#include "tests/support/compressed.h"

namespace megalith::fuzz {
namespace {

constexpr std::size_t kMax = std::size_t{256} << 10;  // a few bytes may stand for gigabytes

// Each returns what the bytes hold, up to kMax; nothing where they are damaged or cut.

std::optional<std::string> whole_gzip(std::string_view packed) {
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, inflateEnd);
  std::string out(kMax, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(kMax);
  do {
    const int result = inflate(&stream, Z_FINISH);
    if (result == Z_BUF_ERROR && stream.avail_out == 0) return out;
    if (result != Z_STREAM_END) return std::nullopt;
    inflateReset(&stream);
  } while (stream.avail_in > 0);
  out.resize(kMax - stream.avail_out);
  return out;
}

std::optional<std::string> whole_zstd(std::string_view packed) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  std::string out(kMax, '\0');
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  while (!packed.empty()) {  // a frame
    const std::size_t size = ZSTD_findFrameCompressedSize(packed.data(), packed.size());
    ZSTD_inBuffer in{packed.data(), ZSTD_isError(size) != 0 ? packed.size() : size, 0};
    const std::size_t before = to.pos;
    std::size_t left = 1;
    while (in.pos < in.size) {
      left = ZSTD_decompressStream(stream.get(), &to, &in);
      if (ZSTD_isError(left) != 0) return std::nullopt;
      if (to.pos == to.size) return out;
    }
    if (left != 0 || ZSTD_isError(size) != 0) return std::nullopt;
    const unsigned long long told = ZSTD_getFrameContentSize(packed.data(), packed.size());
    if (told != ZSTD_CONTENTSIZE_UNKNOWN && told != to.pos - before) return std::nullopt;
    packed.remove_prefix(size);
  }
  out.resize(to.pos);
  return out;
}

std::optional<std::string> whole_xz(std::string_view packed) {
  std::string out(kMax, '\0');
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, std::uint64_t{512} << 20, LZMA_CONCATENATED) != LZMA_OK) throw std::bad_alloc();
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> ended(&stream, lzma_end);
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  stream.next_out = reinterpret_cast<std::uint8_t*>(out.data());
  stream.avail_out = kMax;
  const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
  if (stream.avail_out == 0 && (result == LZMA_OK || result == LZMA_BUF_ERROR)) return out;
  if (result != LZMA_STREAM_END) return std::nullopt;
  out.resize(kMax - stream.avail_out);
  return out;
}

/// What open_bytes() gives, up to kMax and some, taken in steps of `step` bytes.
std::string read_all_of(io::Fs& fs, const io::Path& file, std::size_t step) {
  const auto source = data::open_bytes(fs, file);
  std::string text;
  for (bool more = true; more && text.size() < kMax;) {
    const std::size_t held = source->window().size();
    if (held == 0 || held < step) {
      more = source->extend();
      if (more) continue;
    }
    while (!source->window().empty()) {
      const data::ByteBlock block = source->take(std::min(step, source->window().size()));
      text += block.bytes;
      if (more && source->window().size() < step) break;
    }
  }
  return text;
}

std::vector<std::string> seeds_of(std::string (*pack)(std::string_view)) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
  const std::string zeros(70000, '\0');
  return {pack(""), pack("a"), pack(text), pack(text) + pack("") + pack("and more"), pack(zeros)};
}

constexpr std::string_view kCodecNames[] = {"none", "gzip", "zstd", "xz"};

}  // namespace

bool read_packed(std::string_view input) {
  const io::Path path = "/folder/file";
  OneFile fs(path, input);
  const data::Codec codec = data::codec_of(input);
  std::optional<std::string> got;
  try {
    got = read_all_of(fs, path, std::size_t{1} << 20);
  } catch (const InputError&) {
  }
  if (codec == data::Codec::none) return got.has_value();
  const std::optional<std::string> want = codec == data::Codec::gzip   ? whole_gzip(input)
                                          : codec == data::Codec::zstd ? whole_zstd(input)
                                                                       : whole_xz(input);
  const std::string name(kCodecNames[static_cast<std::size_t>(codec)]);
  if (!want && got && got->size() < kMax) throw BrokenPromise(name + ": damage is read");
  if (!want || want->size() >= kMax) return got.has_value();
  if (!got) {  // text that looks like a format that is not read is refused by its name
    try {
      OneFile plain(path, *want);
      read_all_of(plain, path, std::size_t{1} << 20);
    } catch (const InputError&) {
      return false;
    }
    if (data::codec_of(*want) != data::Codec::none) return false;
    throw BrokenPromise(name + ": what is whole is refused");
  }
  if (*got != *want) throw BrokenPromise(name + ": other bytes than the library unpacks");
  if (read_all_of(fs, path, 777) != *want) throw BrokenPromise(name + ": bytes depend on the steps");
  return true;
}

std::vector<std::string> gzip_seeds() { return seeds_of(support::gzip); }
std::vector<std::string> zstd_seeds() {
  std::vector<std::string> seeds = seeds_of(support::zstd);
  seeds.push_back(std::string("\x50\x2A\x4D\x18\x03\0\0\0abc", 11) + support::zstd("after a skippable frame"));
  return seeds;
}
std::vector<std::string> xz_seeds() { return seeds_of(support::xz); }

}  // namespace megalith::fuzz
