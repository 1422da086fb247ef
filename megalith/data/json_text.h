#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/error.h"

namespace megalith::data {

/// Where a line of JSON stands, and what may be read around it.
struct JsonLine {
  std::string_view file;
  std::uint64_t number = 1;     ///< counted from 1
  std::string_view readable{};  ///< memory that holds the line; a line with 64 bytes of it behind needs no copy
};

/// Why a document cannot be taken.
enum class BadDocument {
  not_json,
  cut,  ///< it ends too early
  lone_surrogate,
  control_character,  ///< within a string, not escaped
  zero_byte,
  too_deep,
  array,      ///< where an object must be
  no_object,  ///< a string, a number, ...
  key_missing,
  key_twice,
  null,  ///< the value of the key
  no_string,
  not_utf8,
  too_long
};
constexpr std::size_t kNumBadDocuments = 14;
std::string_view name_of(BadDocument reason);

/// A document that breaks a rule; its text names file and line, or byte.
class DocumentError : public InputError {
 public:
  DocumentError(BadDocument reason, const std::string& text) : InputError(text), reason_(reason) {}
  BadDocument reason() const { return reason_; }

 private:
  BadDocument reason_;
};

/// Takes the text out of lines of JSON: the member `key` of an object, a string. Keeps its memory from line to line;
/// one per thread. Valid lines take simdjson's path (2 GB/s); a line that it does not take is read again by the slower
/// reader, which decides and names the place. So which lines are valid does not depend on the path.
class JsonText {
 public:
  /// `other_key` names a second member to look for; empty: none. `fix`: of a line without the key; empty: the setting
  /// that names another key.
  explicit JsonText(std::string key, std::string other_key = {}, std::string fix = {});
  ~JsonText();
  JsonText(JsonText&&) noexcept;
  JsonText& operator=(JsonText&&) noexcept;

  /// The text of the line, UTF-8; valid until the next call. Throws DocumentError naming file and line when the line is
  /// no JSON object, lacks the key, has it twice, or its value is no string.
  std::string_view read(std::string_view line, const JsonLine& place);
  // Of the last line that was read:
  /// The first member other_key, if it is a string.
  const std::optional<std::string>& other() const { return other_; }
  /// How many members stand before the text's.
  std::size_t members_before() const { return members_before_; }

 private:
  struct Parser;
  std::string_view read_slowly(std::string_view line, const JsonLine& place);

  std::string key_, other_key_, fix_;
  std::unique_ptr<Parser> parser_;
  std::string text_;
  std::optional<std::string> other_;
  std::size_t members_before_ = 0;
};

/// Appends a valid line of JSON, an object, with another string as the value of its member number `member`; all else as
/// it was.
void append_with_member(std::string& out, std::string_view line, std::size_t member, std::string_view value);

/// Appends `text` (UTF-8) as a JSON string, quotes included: characters outside ASCII stay as they are.
void append_json_string(std::string& out, std::string_view text);

}  // namespace megalith::data
