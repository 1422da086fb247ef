#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith::io {

/// The one way in which a parser touches bytes of a file. Every read is checked against what is left before it happens,
/// and a size claimed by the file is proved with count() before anything is allocated for it. Copies nothing: what it
/// returns points into the bytes, which must outlive it.
///
/// Every failure is an InputError: "[FILE] offset 8, FIELD: RULE" ("[FILE] line 3, ..." once next_line() was used).
class Reader {
 public:
  /// `source` names the file in errors; `base` is the offset of bytes[0] in that file.
  Reader(std::span<const std::byte> bytes, std::string_view source, std::uint64_t base = 0)
      : bytes_(bytes), source_(source), base_(base) {}

  std::uint64_t offset() const { return base_ + position_; }  ///< in the file
  std::uint64_t remaining() const { return bytes_.size() - position_; }
  bool at_end() const { return remaining() == 0; }
  const std::string& source() const { return source_; }

  /// Throws unless `size` more bytes are there.
  void need(std::uint64_t size, std::string_view field) const;
  /// Throws unless everything was read.
  void expect_end(std::string_view field) const;
  /// Throws unless `claimed` elements of `element_bytes` each fit into what is left; returns their count.
  std::size_t count(std::uint64_t claimed, std::uint64_t element_bytes, std::string_view field) const;

  // Little-endian, as every format here.
  std::uint8_t u8(std::string_view field) { return static_cast<std::uint8_t>(little(1, field)); }
  std::uint16_t u16(std::string_view field) { return static_cast<std::uint16_t>(little(2, field)); }
  std::uint32_t u32(std::string_view field) { return static_cast<std::uint32_t>(little(4, field)); }
  std::uint64_t u64(std::string_view field) { return little(8, field); }
  std::int32_t i32(std::string_view field) { return static_cast<std::int32_t>(u32(field)); }
  std::int64_t i64(std::string_view field) { return static_cast<std::int64_t>(u64(field)); }

  std::span<const std::byte> bytes(std::uint64_t size, std::string_view field);
  std::string_view text(std::uint64_t size, std::string_view field);
  /// A reader over the next `size` bytes, with offsets of the whole file; this one moves past them.
  Reader part(std::uint64_t size, std::string_view field);

  /// The next line without its "\n" or "\r\n"; nothing at the end. A last line needs no "\n".
  std::optional<std::string_view> next_line();
  std::uint64_t line() const { return line_; }  ///< of the last line returned, counted from 1

  [[noreturn]] void fail(std::string_view field, std::string_view rule) const;

 private:
  std::uint64_t little(int size, std::string_view field);

  std::span<const std::byte> bytes_;
  std::string source_;
  std::uint64_t base_ = 0;
  std::size_t position_ = 0;
  std::uint64_t line_ = 0;
};

/// `text` for a message: control characters and broken UTF-8 as \xNN, cut after `max_bytes`.
std::string printable(std::string_view text, std::size_t max_bytes = 80);

}  // namespace megalith::io
