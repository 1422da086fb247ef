#include "megalith/data/byte_source.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/decompress.h"

namespace megalith::data {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// A file as it is stored. Touched pages of a mapping count as memory of the process, so the mapping is renewed at
/// intervals. Blocks that are still held keep the previous mapping.
class MappedSource final : public ByteSource {
 public:
  MappedSource(io::Fs& fs, io::Path file) : fs_(fs), file_(std::move(file)) { map(); }

  std::string_view window() const override { return mapped_->text().substr(at_, visible_); }
  bool extend() override {
    const std::size_t left = mapped_->text().size() - at_ - visible_;
    visible_ += std::min(left, kPieceBytes);
    return left > 0;
  }
  ByteBlock take(std::size_t size) override {
    ByteBlock block{mapped_->text().substr(at_, size), mapped_};
    at_ += size;
    visible_ -= size;
    if (at_ - mapped_at_ >= kRenewBytes) {
      const std::size_t bytes = mapped_->text().size();
      map();
      if (mapped_->text().size() != bytes)
        throw InputError(str("[", file_.string(), "] changed while it was read: it had ", bytes, " bytes, now ",
                             mapped_->text().size()));
    }
    return block;
  }
  std::uint64_t stored_bytes() const override { return at_; }

 private:
  static constexpr std::size_t kRenewBytes = std::size_t{16} << 20;

  void map() {
    mapped_ = std::make_shared<const io::MappedFile>(fs_.map(file_));
    mapped_at_ = at_;
  }

  io::Fs& fs_;
  io::Path file_;
  std::shared_ptr<const io::MappedFile> mapped_;
  std::size_t at_ = 0, visible_ = 0;
  std::size_t mapped_at_ = 0;  // where at_ was when the file was mapped
};

/// Formats that hold text and are not read.
void refuse_others(std::string_view front, const io::Path& file) {
  for (const auto& [magic, what] : {std::pair<std::string_view, std::string_view>{"%PDF-", "a PDF file"},
                                    {"WARC/", "a WARC file"},
                                    {"BZh", "compressed by bzip2"},
                                    {"PK\x03\x04", "a zip archive"}})
    if (front.starts_with(magic))
      throw InputError(
          str("[", file.string(), "] is ", what, ": give text or JSON lines, plain or compressed as gz, zst or xz"));
}

}  // namespace

Codec codec_of(std::string_view front) {
  if (front.starts_with("\x1F\x8B")) return Codec::gzip;
  const bool is_skippable = front.size() >= 4 && (front[0] & 0xF0) == 0x50 && front.substr(1, 3) == "\x2A\x4D\x18";
  if (front.starts_with("\x28\xB5\x2F\xFD") || is_skippable) return Codec::zstd;
  if (front.starts_with(std::string_view("\xFD"
                                         "7zXZ\0",
                                         6)))
    return Codec::xz;
  return Codec::none;
}

std::unique_ptr<ByteSource> open_bytes(io::Fs& fs, const io::Path& file) {
  std::unique_ptr<ByteSource> source = std::make_unique<MappedSource>(fs, file);
  source->extend();
  const std::string extension = file.extension().string();
  if (source->window().empty() && (extension == ".gz" || extension == ".zst" || extension == ".xz"))
    throw InputError(str("[", file.string(), "] is empty: a ", extension, " file has at least a header"));
  if (const Codec codec = codec_of(source->window()); codec != Codec::none) {
    source = decompressed(codec, std::move(source), file.string());
    source->extend();
  }
  refuse_others(source->window(), file);
  return source;
}

}  // namespace megalith::data
