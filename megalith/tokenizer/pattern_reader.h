#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

/// Throws InputError: "must not hold PART: WHY".
[[noreturn]] void refuse_pattern(std::string_view part, std::string_view why);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
inline bool is_octal(char c) { return c >= '0' && c <= '7'; }

/// Whether a character matches several characters without case, or is one of those.
bool folds_to_several(char32_t c);

/// Reads a regular expression of Oniguruma character by character, in every way to write one.
class PatternReader {
 public:
  static constexpr std::size_t kNowhere = std::string::npos;
  static constexpr int kMaxDepth = 200;  // PCRE2's own is 250

  struct Options {
    bool any_case = false, extended = false, point_is_all = false;
  };
  struct Literal {
    char32_t code;
    std::string text;  // in PCRE2's syntax, within brackets and outside
  };
  enum class Within { pattern, brackets };

  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

 protected:
  std::string_view rest() const { return pattern_.substr(at_); }
  bool at_end() const { return at_ == pattern_.size(); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  /// One character that is not escaped.
  Literal take_character();
  /// \n, \x41, \u0041, \101, \cA and letters without a meaning; nothing for other escapes.
  std::optional<Literal> escaped_character(Within within);
  /// \101.
  Literal octal_character();

  std::string_view pattern_;
  std::size_t at_ = 0;

 private:
  /// \x{2028}, \x0B, \xC3\xA9, \u2028.
  Literal hex_character(char letter);
  Literal character_of_bytes();
};

}  // namespace megalith::tokenizer
