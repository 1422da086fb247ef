// Vocabularies and patterns. An input has a file, a NUL byte and a text to encode.
#include <map>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/bert_text.h"
#include "megalith/tokenizer/byte_level_bpe.h"
#include "megalith/tokenizer/piece_stream.h"
#include "megalith/tokenizer/pre_tokenizer.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/wordpiece.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/one_file.h"
#include "tests/tokenizer/byte_tokens.h"

namespace megalith::fuzz {
namespace {

struct Parts {
  std::string_view file, text;
};
Parts parts_of(std::string_view input) {
  const std::size_t end = input.find('\0');
  if (end == input.npos) return {input, "a text, and 12 \xC3\xA9 more"};
  return {input.substr(0, end), input.substr(end + 1)};
}
std::string seed(std::string_view file, std::string_view text) { return std::string(file) + '\0' + std::string(text); }

/// The longest piece that fits, again and again, from a map of all tokens.
std::vector<std::int32_t> plain_wordpiece(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& tokens,
                                          std::string_view text) {
  std::map<std::string, std::int32_t, std::less<>> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<std::int32_t>(i));
  const std::int32_t unknown = *tokenizer.special(tokenizer::Special::unk);
  tokenizer::BertText words(tokenizer::BertTextOptions{});
  std::vector<std::int32_t> all;
  words.words(text, [&](std::string_view word) {
    std::vector<std::int32_t> pieces;
    std::size_t characters = 0;
    for (const char c : word) characters += (c & 0xC0) != 0x80 ? 1 : 0;
    bool is_known = characters <= 100;
    for (std::size_t at = 0; at < word.size() && is_known;) {
      std::size_t size = word.size() - at;
      for (; size > 0; --size) {
        const std::string piece = (at > 0 ? "##" : "") + std::string(word.substr(at, size));
        // What begins a word is never read as a continuation: "##" alone, and a shorter token.
        if (const auto found = ids.find(piece); found != ids.end() && (at == 0 || piece.size() > 2)) {
          pieces.push_back(found->second);
          break;
        }
      }
      is_known = size > 0;
      at += size;
    }
    if (!is_known) pieces = {unknown};
    all.insert(all.end(), pieces.begin(), pieces.end());
  });
  return all;
}

std::string json_head() {
  return R"({"added_tokens": [{"id": 257, "content": "<|endoftext|>", "special": true}, {"id": 258, "content": "<t>",
  "special": false, "normalized": false}], "normalizer": null, "pre_tokenizer": {"type": "Sequence",
  "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?[^\\s\\p{N}]+|\\s+"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "post_processor": null, "model": {"type": "BPE",
  "ignore_merges": true, "merges": ["a b"], "vocab": {"ab": 256, )";
}
/// What follows the file of an input: the 256 bytes. So changes hit the part that is read.
const std::string& rest_of_json() {
  static const std::string text = tokenizer::byte_tokens() + "}}}";
  return text;
}

}  // namespace

bool read_wordpiece(std::string_view input) {
  const auto [file, text] = parts_of(input);
  const io::Path path = "/folder/vocab.txt";
  OneFile fs(path, file);
  try {
    const auto tokenizer = tokenizer::load_wordpiece(fs, "bert-uncased", path.parent_path());
    const std::vector<std::string> tokens = tokenizer::read_vocab_txt(fs, path);
    if (static_cast<std::size_t>(tokenizer->vocab_size()) != tokens.size()) throw BrokenPromise("tokens are missing");
    if (!is_utf8(text)) {
      try {
        (void)tokenizer->encode(text);
      } catch (const tokenizer::EncodeError&) {
        return true;
      }
      throw BrokenPromise("a text that is not UTF-8 is encoded");
    }
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    if (ids != plain_wordpiece(*tokenizer, tokens, text)) throw BrokenPromise("ids differ from the plain loop's");
    (void)tokenizer->decode(ids);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

std::vector<std::string> wordpiece_seeds() {
  const std::string vocabulary =
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nab\n##b\n##ab\n##abc\nun\n##aff\n##able\n,\n.\n\xC3\xA9\n##"
      "\xE4\xB8\x80\n##\n";
  return {seed(vocabulary, "a ab abab, unaffable abc."), seed(vocabulary, "b\xC3\xA9 " + std::string(101, 'a') + " A"),
          seed("[UNK]\r\n[SEP]\r\nword\r\n##s",
               "words word \xE4\xB8\x80"
               "a x")};
}

/// Character by character, a text has the pieces that it has as a whole.
static void check_stream(const tokenizer::PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string> whole, streamed;
  tokenizer::PreTokenizer::Match match(pre_tokenizer);
  pre_tokenizer.pieces(text, match, [&](std::string_view piece) { whole.emplace_back(piece); });
  tokenizer::PieceStream stream(pre_tokenizer);
  const auto add = [&](std::string_view piece) { streamed.emplace_back(piece); };
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t size = utf8_front(rest).length;
    stream.push(rest.substr(0, size), false, add);
    rest.remove_prefix(size);
  }
  stream.push("", true, add);
  if (streamed != whole) throw BrokenPromise("a text that comes in parts has other pieces");
}

bool read_pattern(std::string_view input) {
  const auto [pattern, text] = parts_of(input);
  if (!is_utf8(text)) return false;
  try {
    const tokenizer::PreTokenizer pre_tokenizer({{std::string(pattern)}});
    tokenizer::PreTokenizer::Match match(pre_tokenizer);
    std::string back;
    std::size_t cuts = 0;
    const std::size_t cut = pre_tokenizer.next_cut(text, text.size() / 2);
    pre_tokenizer.pieces(text, match, [&](std::string_view piece) {
      if (piece.empty()) throw BrokenPromise("a piece is empty");
      if (back.size() == cut) ++cuts;
      back += piece;
    });
    if (back != text) throw BrokenPromise("the pieces are not the text");
    if (cut < text.size() && cuts == 0) throw BrokenPromise("next_cut() is within a piece");
    if (pre_tokenizer.can_stream()) check_stream(pre_tokenizer, text);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

std::vector<std::string> pattern_seeds() {
  const std::string_view text = "I've 12345  words,\n\n and\t\xC3\xA9\xE4\xB8\x80 don't!\r\n  end ";
  std::vector<std::string> seeds;
  for (
      const char* pattern :
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"([0-9][0-9][0-9]|\p{Han}+|(?<=a)b|[\x{2028}\u0041-\x5A]{2,3}?)",
       R"((?i)first|(?<n>[a-z])\k<n>{1,2}+|(?-i:^[^\S\n]*)|(?m-i:.[a-z&&[^aeiou]])$|(a)?(?(<n>)b)|\b)"})
    seeds.push_back(seed(pattern, text));
  return seeds;
}

bool read_tokenizer_json(std::string_view input) {
  const auto [head, text] = parts_of(input);
  const io::Path path = "/folder/tokenizer.json";
  const std::string file = std::string(head) + rest_of_json();
  OneFile fs(path, file);
  try {
    const auto tokenizer = tokenizer::make_tokenizer("bpe", path.parent_path(), fs);
    if (!is_utf8(text)) return false;
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    for (const std::int32_t id : ids)
      if (id < 0 || id >= tokenizer->vocab_size()) throw BrokenPromise("an id is outside the vocabulary");
    const std::string back = tokenizer->decode(ids);
    const bool is_changed = head.find("NFC") != head.npos || head.find("Removed") != head.npos;
    if (back != text && !is_changed) throw BrokenPromise("decoded ids are not the text");
  } catch (const InputError&) {
    return false;
  }
  return true;
}

std::vector<std::string> tokenizer_json_seeds() {
  std::string composed = json_head();
  composed.replace(composed.find("null"), 4, R"({"type": "NFC"})");
  return {seed(json_head(), "ab <t> 12345 words ab"), seed(composed, "e\xCC\x81 ab")};
}

}  // namespace megalith::fuzz
