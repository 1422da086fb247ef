#include "megalith/data/decompress.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "megalith/base/error.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

/// Input and output of one step of a decoder.
struct Step {
  std::string_view in;  ///< the rest of the input
  char* out = nullptr;
  std::size_t room = 0, taken = 0, written = 0;
  bool is_last = false;  ///< nothing follows `in`

  void take(std::size_t bytes) {
    in.remove_prefix(bytes);
    taken += bytes;
  }
};

/// Unpacks pieces. step() takes input or writes output if it can. It throws InputError, by fail(), for damage.
class Decoder {
 public:
  explicit Decoder(std::string name) : name_(std::move(name)) {}
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual void step(Step& step) = 0;
  /// Whether the end of `in` may be the end of the file.
  virtual bool may_end() const = 0;

  /// The place in the error is what the decoder has taken: where it found the damage.
  [[noreturn]] void fail(const Step& step, std::string_view rule) const {
    throw InputError(str("[", name_, "] at byte ", taken_ + step.taken, " of the compressed file: ", rule));
  }
  void count_taken(std::size_t bytes) { taken_ += bytes; }

 private:
  std::string name_;
  std::uint64_t taken_ = 0;
};

class GzipDecoder final : public Decoder {
 public:
  explicit GzipDecoder(std::string name) : Decoder(std::move(name)) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  bool may_end() const override { return is_between_; }

  void step(Step& step) override {
    if (is_between_) {
      if (step.in.empty()) return;
      if (step.in[0] != '\x1F') fail(step, "something follows the end of the gzip data");
      inflateReset(&stream_);
      is_between_ = false;
    }
    constexpr std::size_t kMax = std::size_t{1} << 30;
    const std::size_t given = std::min(step.in.size(), kMax);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(step.in.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(step.out);
    stream_.avail_out = static_cast<uInt>(std::min(step.room, kMax));
    const uInt room = stream_.avail_out;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    step.take(given - stream_.avail_in);
    step.written = room - stream_.avail_out;
    if (result == Z_STREAM_END) is_between_ = true;
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(step, str("the gzip data is damaged (", stream_.msg != nullptr ? stream_.msg : "no reason given", ")"));
  }

 private:
  z_stream stream_{};
  bool is_between_ = true;  // between members
};

class ZstdDecoder final : public Decoder {
 public:
  explicit ZstdDecoder(std::string name) : Decoder(std::move(name)), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }
  bool may_end() const override { return is_between_; }

  void step(Step& step) override {
    if (is_between_ && step.in.empty()) return;
    // One block per call: for damage the library does not return how far it came.
    ZSTD_inBuffer in{step.in.data(), std::min(step.in.size(), wanted_), 0};
    ZSTD_outBuffer out{step.out, step.room, 0};
    const std::size_t result = ZSTD_decompressStream(stream_, &out, &in);
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_isError(result) != 0) fail(step, str("the zstd data is damaged (", ZSTD_getErrorName(result), ")"));
    if (is_between_) header_.clear(), written_ = 0;
    header_.append(step.in.substr(0, std::min(in.pos, kHeaderBytes - header_.size())));
    written_ += out.pos;
    step.take(in.pos);
    step.written = out.pos;
    is_between_ = result == 0;
    wanted_ = is_between_ ? kHeaderBytes : result;
    if (is_between_) check_size(step);
  }

 private:
  static constexpr std::size_t kHeaderBytes = 18;  // of a frame, at most

  /// The library checks the size in the header only if it gets a whole frame and room for its content.
  void check_size(const Step& step) {
    const unsigned long long size = ZSTD_getFrameContentSize(header_.data(), header_.size());
    if (size < ZSTD_CONTENTSIZE_ERROR && size != written_)
      fail(step, str("the zstd data is damaged (a frame of ", size, " bytes holds ", written_, ")"));
  }

  ZSTD_DStream* stream_;
  bool is_between_ = true;             // between frames
  std::size_t wanted_ = kHeaderBytes;  // bytes of the next block, from the library
  std::string header_;                 // the first bytes of this frame
  unsigned long long written_ = 0;     // bytes of this frame
};

class XzDecoder final : public Decoder {
 public:
  explicit XzDecoder(std::string name) : Decoder(std::move(name)) {
    constexpr std::uint64_t kMaxMemory = std::uint64_t{512} << 20;
    if (lzma_stream_decoder(&stream_, kMaxMemory, LZMA_CONCATENATED) != LZMA_OK) throw std::bad_alloc();
  }
  ~XzDecoder() override { lzma_end(&stream_); }
  bool may_end() const override { return is_ended_; }

  void step(Step& step) override {
    if (is_ended_) return;
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(step.in.data());
    stream_.avail_in = step.in.size();
    stream_.next_out = reinterpret_cast<std::uint8_t*>(step.out);
    stream_.avail_out = step.room;
    const lzma_ret result = lzma_code(&stream_, step.is_last ? LZMA_FINISH : LZMA_RUN);
    step.take(step.in.size() - stream_.avail_in);
    step.written = step.room - stream_.avail_out;
    if (result == LZMA_STREAM_END) is_ended_ = true;
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    if (result == LZMA_MEMLIMIT_ERROR) fail(step, "the xz data needs over 512 MiB to be unpacked");
    if (result != LZMA_OK && result != LZMA_STREAM_END && result != LZMA_BUF_ERROR)
      fail(step, "the xz data is damaged");
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool is_ended_ = false;
};

/// Unpacks into buffers that blocks keep alive. Bytes are appended to a buffer until it is full. Then the window moves
/// to a new one.
class DecompressedSource final : public ByteSource {
 public:
  DecompressedSource(std::unique_ptr<Decoder> decoder, std::unique_ptr<ByteSource> stored)
      : decoder_(std::move(decoder)), stored_(std::move(stored)) {}

  std::string_view window() const override { return {buffer_.get() + begin_, end_ - begin_}; }
  std::uint64_t stored_bytes() const override { return stored_->stored_bytes(); }
  ByteBlock take(std::size_t size) override {
    const ByteBlock block{window().substr(0, size), buffer_};
    begin_ += size;
    return block;
  }
  bool extend() override {
    if (is_over_) return false;
    make_room();
    const std::size_t before = end_, wanted = end_ + kPieceBytes;
    while (end_ < wanted && !is_over_) decode(wanted);
    return end_ > before;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  static constexpr std::size_t kAskedFrom = std::size_t{16}
                                            << 20;  // for smaller buffers the limits of the host are not read

  void make_room() {
    if (capacity_ - end_ >= kPieceBytes) return;
    const std::size_t held = end_ - begin_, wanted = held + kPieceBytes;
    const std::size_t capacity = std::max(4 * kPieceBytes, wanted + wanted / 2);
    if (capacity >= kAskedFrom)
      require_memory(host_limits(), static_cast<Index>(capacity), "what a compressed file holds, unpacked",
                     "lower the limit on a line (--max-line, data.max_line), or cut the file");
    const std::shared_ptr<char[]> larger(new char[capacity]);  // not cleared: written before it is read
    if (held > 0) std::memcpy(larger.get(), buffer_.get() + begin_, held);
    buffer_ = larger;
    capacity_ = capacity;
    begin_ = 0;
    end_ = held;
  }

  void decode(std::size_t wanted) {
    if (stored_->window().empty()) is_last_ = !stored_->extend();
    Step step{.in = stored_->window(), .out = buffer_.get() + end_, .room = wanted - end_, .is_last = is_last_};
    decoder_->step(step);
    stored_->take(step.taken);
    decoder_->count_taken(step.taken);
    end_ += step.written;
    if (!is_last_ || step.taken > 0 || step.written > 0) return;
    if (!decoder_->may_end()) decoder_->fail({}, "the file is cut: its compressed data goes on");
    is_over_ = true;
  }

  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<ByteSource> stored_;
  std::shared_ptr<char[]> buffer_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
  bool is_last_ = false, is_over_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> decompressed(Codec codec, std::unique_ptr<ByteSource> stored, std::string name) {
  std::unique_ptr<Decoder> decoder;
  if (codec == Codec::gzip)
    decoder = std::make_unique<GzipDecoder>(std::move(name));
  else if (codec == Codec::zstd)
    decoder = std::make_unique<ZstdDecoder>(std::move(name));
  else
    decoder = std::make_unique<XzDecoder>(std::move(name));
  return std::make_unique<DecompressedSource>(std::move(decoder), std::move(stored));
}

}  // namespace megalith::data
