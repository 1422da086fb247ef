#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "megalith/tokenizer/pattern_reader.h"

namespace megalith::tokenizer {

/// Any character, a line end too, in PCRE2's syntax.
inline constexpr std::string_view kAnyCharacter = "(?s:.)";

/// A set of characters within brackets.
struct CharacterSet {
  std::string items;
  bool is_negative = false;
  enum class Case : std::uint8_t {
    none,        // it has the other cases of its characters, and none of them matches several characters
    complement,  // all characters outside of such a set
    letters,     // L, whose other cases are all L, except U+0345
    word,        // \w
    changes      // any other set
  } in_case = Case::changes;
};

/// Reads classes of characters: \s, \p{L}, [[:alpha:]a-z&&[^b]].
class ClassReader : public PatternReader {
 public:
  using PatternReader::PatternReader;

 protected:
  /// \s \S \d \D \w \W \h \H \p{NAME} \p{^NAME} \P{NAME}.
  CharacterSet escaped_set();
  /// Reads a class in brackets; the [ is next. The result matches one character.
  std::string char_class(const Options& options, int depth);

 private:
  CharacterSet property();
  /// [:alpha:], [:^alpha:].
  CharacterSet posix_set();
  /// One element of a class: a character, a range or a set.
  template <class AddSet>
  void range_or_set(const Options& options, std::string& items, const AddSet& add_set);
};

}  // namespace megalith::tokenizer
