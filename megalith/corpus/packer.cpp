#include "megalith/corpus/packer.h"

#include <algorithm>
#include <array>
#include <new>

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::corpus {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

class NoPacker final : public Packer {
 public:
  void add(std::string_view bytes, std::string& out) override { out += bytes; }
  void finish(std::string&) override {}
};

class GzipPacker final : public Packer {
 public:
  GzipPacker() {
    constexpr int kGzip = 16 + 15;  // a gzip member with the largest window
    if (deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  ~GzipPacker() override { deflateEnd(&stream_); }
  GzipPacker(const GzipPacker&) = delete;
  GzipPacker& operator=(const GzipPacker&) = delete;

  void add(std::string_view bytes, std::string& out) override {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kPieceBytes)))
      run(bytes.substr(0, kPieceBytes), Z_NO_FLUSH, out);
  }
  void finish(std::string& out) override { run({}, Z_FINISH, out); }

 private:
  void run(std::string_view bytes, int flush, std::string& out) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = piece_.data();
      stream_.avail_out = static_cast<uInt>(piece_.size());
      if (deflate(&stream_, flush) == Z_STREAM_ERROR) throw InternalError("[gzip] deflate failed");
      out.append(reinterpret_cast<const char*>(piece_.data()), piece_.size() - stream_.avail_out);
    } while (stream_.avail_out == 0);
  }

  z_stream stream_{};
  std::array<Bytef, 32768> piece_{};
};

class ZstdPacker final : public Packer {
 public:
  ZstdPacker() : context_(ZSTD_createCCtx(), &ZSTD_freeCCtx) {
    if (!context_) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }
  void add(std::string_view bytes, std::string& out) override { run(bytes, ZSTD_e_continue, out); }
  void finish(std::string& out) override { run({}, ZSTD_e_end, out); }

 private:
  void run(std::string_view bytes, ZSTD_EndDirective mode, std::string& out) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    for (;;) {
      ZSTD_outBuffer to{piece_.data(), piece_.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context_.get(), &to, &in, mode);
      if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation) throw std::bad_alloc();
      if (ZSTD_isError(left) != 0) throw InternalError(str("[zstd] ", ZSTD_getErrorName(left)));
      out.append(piece_.data(), to.pos);
      if (mode == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context_;
  std::array<char, 32768> piece_{};
};

}  // namespace

Compression compression_named(std::string_view name) {
  if (name == "none") return Compression::none;
  if (name == "gz") return Compression::gzip;
  if (name == "zst") return Compression::zstd;
  throw ConfigError(str("--compress ", name, ": must be none, gz or zst"));
}

std::string_view extension_of(Compression compression) {
  return compression == Compression::gzip ? ".gz" : compression == Compression::zstd ? ".zst" : "";
}

std::unique_ptr<Packer> make_packer(Compression compression) {
  if (compression == Compression::gzip) return std::make_unique<GzipPacker>();
  if (compression == Compression::zstd) return std::make_unique<ZstdPacker>();
  return std::make_unique<NoPacker>();
}

}  // namespace megalith::corpus
