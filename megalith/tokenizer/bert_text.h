#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

/// How BERT cuts text into words. The names are those of tokenizer.json.
struct BertTextOptions {
  bool clean_text = true;            ///< control characters go, white space becomes a space
  bool handle_chinese_chars = true;  ///< each Chinese character is a word
  bool strip_accents = true;         ///< NFD, without nonspacing marks
  bool lowercase = true;
  bool operator==(const BertTextOptions&) const = default;
};

enum class BertClass : std::uint8_t { word, space, punctuation, removed };
/// The class of a character in BERT, with clean_text.
BertClass bert_class(char32_t c);
/// Category Mn of Unicode 8.0.
bool is_nonspacing_mark(char32_t c);
/// U+4E00 and the like. As published, one range begins at U+2B920, not at U+2B820.
bool is_chinese(char32_t c);

/// The first place p >= from, p > 0, before white space that cleaning leaves, else text.size(). A word always ends
/// there, and no mark moves across it.
inline std::size_t next_blank(std::string_view text, std::size_t from) {
  return std::min(text.find_first_of(" \t\r\n", from == 0 ? 1 : from), text.size());
}

/// Cuts text into the words that WordPiece looks up: at white space, and around each punctuation mark, which is a word
/// too. Keeps its memory from text to text. One thread at a time.
/// Source: google-research/bert, tokenization.py, BasicTokenizer. Characters are classed as in the tokenizers library,
/// whose tables are of Unicode 8.0. So ids do not depend on installed libraries.
class BertText {
 public:
  explicit BertText(const BertTextOptions& options);

  /// Calls use(word) for each, in order; a word is valid until use() returns. `text` must be UTF-8.
  template <class Use>
  void words(std::string_view text, const Use& use) {
    word_.clear();
    const auto end_word = [&] {
      if (!word_.empty()) use(std::string_view(word_));
      word_.clear();
    };
    for (std::size_t at = 0; at < text.size();) {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x80) {
        ++at;
        switch (ascii_[byte]) {
          case BertClass::word:
            word_.push_back(static_cast<char>(lower_[byte]));
            break;
          case BertClass::space:
            end_word();
            break;
          case BertClass::punctuation:
            end_word(), use(text.substr(at - 1, 1));
            break;
          case BertClass::removed:
            break;
        }
        continue;
      }
      at = read_run(text, at);
      for (const char32_t c : run_) {
        const BertClass kind = class_of(c);
        if (kind == BertClass::word) {
          append(c);
          continue;
        }
        end_word();
        if (kind != BertClass::punctuation) continue;
        append(c);
        end_word();
      }
    }
    end_word();
  }

 private:
  std::size_t read_run(std::string_view text, std::size_t at);
  BertClass class_of(char32_t c) const;
  void append(char32_t c);

  BertTextOptions options_;
  std::array<BertClass, 128> ascii_{};
  std::array<unsigned char, 128> lower_{};
  std::string word_;
  std::u32string run_, before_lower_;
};

}  // namespace megalith::tokenizer
