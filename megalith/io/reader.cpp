#include "megalith/io/reader.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::io {
namespace {

/// Bytes of the well-formed UTF-8 character that `text` starts with; 0 when there is none. Unicode 15, table 3-7.
std::size_t utf8_length(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 4;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // overlong forms
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // surrogates, above U+10FFFF
  if (at(1) < low || at(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

void Reader::fail(std::string_view field, std::string_view rule) const {
  const std::string where = line_ > 0 ? str("line ", line_) : str("offset ", offset());
  throw InputError(str("[", source_, "] ", where, ", ", field, ": ", rule));
}

void Reader::need(std::uint64_t size, std::string_view field) const {
  if (size > remaining()) fail(field, str("needs ", size, " bytes, the file has ", remaining(), " left"));
}

void Reader::expect_end(std::string_view field) const {
  if (!at_end()) fail(field, str("ends here, but ", remaining(), " bytes follow"));
}

std::size_t Reader::count(std::uint64_t claimed, std::uint64_t element_bytes, std::string_view field) const {
  if (element_bytes > 0 && claimed > remaining() / element_bytes) {
    fail(field,
         str(claimed, " elements of ", element_bytes, " bytes are claimed, the file has ", remaining(), " bytes left"));
  }
  return static_cast<std::size_t>(claimed);
}

std::uint64_t Reader::little(int size, std::string_view field) {
  need(static_cast<std::uint64_t>(size), field);
  std::uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) {
    value = value << 8 | static_cast<std::uint64_t>(bytes_[position_ + static_cast<std::size_t>(i)]);
  }
  position_ += static_cast<std::size_t>(size);
  return value;
}

std::span<const std::byte> Reader::bytes(std::uint64_t size, std::string_view field) {
  need(size, field);
  const auto found = bytes_.subspan(position_, static_cast<std::size_t>(size));
  position_ += found.size();
  return found;
}

std::string_view Reader::text(std::uint64_t size, std::string_view field) {
  const auto found = bytes(size, field);
  return {reinterpret_cast<const char*>(found.data()), found.size()};
}

Reader Reader::part(std::uint64_t size, std::string_view field) {
  const std::uint64_t start = offset();
  return {bytes(size, field), source_, start};
}

std::optional<std::string_view> Reader::next_line() {
  if (at_end()) return std::nullopt;
  const auto* const start = reinterpret_cast<const char*>(bytes_.data()) + position_;
  const auto* const newline = static_cast<const char*>(std::memchr(start, '\n', bytes_.size() - position_));
  const std::size_t length = newline != nullptr ? static_cast<std::size_t>(newline - start) : bytes_.size() - position_;
  position_ += length + (newline != nullptr ? 1 : 0);
  ++line_;
  std::string_view found(start, length);
  if (found.ends_with('\r')) found.remove_suffix(1);
  return found;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= max_bytes) return shown + "...";
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = lead < 0x20 || lead == 0x7F ? 0 : utf8_length(text);
    if (length == 0) {
      shown += {'\\', 'x', kHex[lead >> 4], kHex[lead & 15]};
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

}  // namespace megalith::io
