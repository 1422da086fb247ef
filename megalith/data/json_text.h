#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/error.h"

namespace megalith::data {

/// Where a line of JSON is, and which memory around it may be read.
struct JsonLine {
  std::string_view file;
  std::uint64_t number = 1;     ///< counted from 1
  std::string_view readable{};  ///< memory that holds the line; with 64 bytes of it after the line no copy is made
};

/// Why a document is not accepted.
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

/// Reads the text of lines of JSON: the member `key` of an object, a string. Keeps its memory from line to line; one
/// per thread. Valid lines take simdjson's path (2 GB/s). A line that simdjson refuses is read again by the slower
/// reader, which decides and names the place. So which lines are valid does not depend on the path.
class JsonText {
 public:
  /// `other_key` names a second member to look for; empty: none. `fix` ends the error for a line without the key;
  /// empty: it names the setting of the key.
  explicit JsonText(std::string key, std::string other_key = {}, std::string fix = {});
  ~JsonText();
  JsonText(JsonText&&) noexcept;
  JsonText& operator=(JsonText&&) noexcept;

  /// The text of the line, UTF-8. Valid until the next call. Throws DocumentError naming file and line if the line is
  /// no JSON object, lacks the key, has it twice, or its value is no string.
  std::string_view read(std::string_view line, const JsonLine& place);
  // These refer to the last line:
  /// The first member other_key, if it is a string.
  const std::optional<std::string>& other() const { return other_; }
  /// The number of members before the text's.
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

/// Appends `line`, a valid JSON object, with another string as the value of member number `member`. All else stays as
/// it is.
void append_with_member(std::string& out, std::string_view line, std::size_t member, std::string_view value);

/// Appends `text` (UTF-8) as a JSON string with its quotes. Characters outside ASCII stay as they are.
void append_json_string(std::string& out, std::string_view text);

}  // namespace megalith::data
