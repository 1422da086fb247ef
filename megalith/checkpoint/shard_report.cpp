// The bytes of a ShardReport: little-endian integers; texts and lists with their length in front.
#include <limits>

#include "megalith/base/error.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/io/reader.h"

namespace megalith::checkpoint {
namespace {

constexpr std::uint64_t kMagic = 0x3154524f50455247ULL;      // "GREPORT1"
constexpr std::uint64_t kSmallestPiece = 8 + 1 + 1 + 1 + 8;  // bytes of a piece with empty texts and no dimension

class Bytes {
 public:
  void put(std::uint64_t word, int size = 8) {
    for (int i = 0; i < size; ++i) bytes_.push_back(static_cast<std::byte>(word >> (8 * i) & 0xFF));
  }
  void put(std::string_view text) {
    put(text.size());
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

std::string read_text(io::Reader& reader, std::string_view field) {
  const std::uint64_t size = reader.u64(field);
  return std::string(reader.text(size, field));
}

int read_rank(io::Reader& reader, std::string_view field) {
  const int rank = reader.u8(field);
  if (rank > Shape::kMaxRank) reader.fail(field, "too many dimensions");
  return rank;
}

ShardReport::Piece read_piece(io::Reader& reader) {
  ShardReport::Piece piece;
  piece.slice.name = read_text(reader, "tensor name");
  const std::uint8_t dtype = reader.u8("dtype");
  if (dtype > static_cast<std::uint8_t>(DType::u8)) reader.fail("dtype", "is not known");
  piece.dtype = static_cast<DType>(dtype);
  const int global_rank = read_rank(reader, "global rank");
  for (int i = 0; i < global_rank; ++i) piece.slice.global.push_back(reader.i64("global shape"));
  const int local_rank = read_rank(reader, "local rank");
  for (int i = 0; i < local_rank; ++i) {
    piece.slice.offset[static_cast<std::size_t>(i)] = reader.i64("offset");
    piece.slice.local.push_back(reader.i64("local shape"));
  }
  piece.entry = read_text(reader, "entry");
  return piece;
}

}  // namespace

std::vector<std::byte> serialize_report(const ShardReport& report) {
  Bytes out;
  out.put(kMagic);
  out.put(report.digest.high);
  out.put(report.digest.low);
  out.put(report.file.name);
  out.put(report.file.checksums.bytes);
  out.put(report.file.checksums.blocks.size());
  for (const io::Hash128& block : report.file.checksums.blocks) {
    out.put(block.high);
    out.put(block.low);
  }
  out.put(report.pieces.size());
  for (const ShardReport::Piece& piece : report.pieces) {
    out.put(piece.slice.name);
    out.put(static_cast<std::uint64_t>(piece.dtype), 1);
    out.put(static_cast<std::uint64_t>(piece.slice.global.rank()), 1);
    for (int i = 0; i < piece.slice.global.rank(); ++i) out.put(static_cast<std::uint64_t>(piece.slice.global[i]));
    out.put(static_cast<std::uint64_t>(piece.slice.local.rank()), 1);
    for (int i = 0; i < piece.slice.local.rank(); ++i) {
      out.put(static_cast<std::uint64_t>(piece.slice.offset[static_cast<std::size_t>(i)]));
      out.put(static_cast<std::uint64_t>(piece.slice.local[i]));
    }
    out.put(piece.entry);
  }
  return out.take();
}

ShardReport parse_report(std::span<const std::byte> bytes, std::string_view source) {
  io::Reader reader(bytes, source);
  if (reader.u64("magic") != kMagic) reader.fail("magic", "is not a shard report");
  ShardReport report;
  report.digest.high = reader.u64("digest");
  report.digest.low = reader.u64("digest");
  report.file.name = read_text(reader, "file name");
  report.file.checksums.bytes = reader.u64("file size");
  report.file.checksums.blocks.resize(reader.count(reader.u64("blocks"), 16, "blocks"));
  for (io::Hash128& block : report.file.checksums.blocks) {
    block.high = reader.u64("block checksum");
    block.low = reader.u64("block checksum");
  }
  const std::size_t pieces = reader.count(reader.u64("pieces"), kSmallestPiece, "pieces");
  for (std::size_t i = 0; i < pieces; ++i) report.pieces.push_back(read_piece(reader));
  reader.expect_end("report");
  return report;
}

}  // namespace megalith::checkpoint
