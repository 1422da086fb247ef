#include "megalith/io/reader.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::io {
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

std::string printable(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= max_bytes) return shown + "...";
    const auto lead = static_cast<unsigned char>(text[0]);
    const Utf8Front front = utf8_front(text);
    const bool shows = lead >= 0x20 && lead != 0x7F && front.good == front.length;
    if (shows) {
      shown += text.substr(0, front.length);
    } else {
      shown += {'\\', 'x', kHex[lead >> 4], kHex[lead & 15]};
    }
    text.remove_prefix(shows ? front.length : 1);
  }
  return shown;
}

}  // namespace megalith::io
