#include <string>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/tokenizer/byte_level_bpe.h"
#include "megalith/tokenizer/pre_tokenizer.h"
#include "megalith/tokenizer/wordpiece.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"
#include "tests/tokenizer/byte_tokens.h"
#include "tests/tokenizer/tokenizers.h"

// Files and patterns with random changes: each is read or refused with an InputError, under the sanitizers too. The
// changes are a function of the test's number, so a failure comes again.
namespace megalith::tokenizer {
namespace {

/// Bytes replaced, left out, or repeated; pieces of `parts` put in.
template <std::size_t N>
std::string mutated(std::string text, const std::string_view (&parts)[N], std::uint64_t test) {
  const RandomSite site{.seed = 17, .site = 9};
  std::uint64_t next = test * 64;
  const auto random = [&](std::size_t below) { return site.word(next++) % below; };
  for (std::size_t changes = 1 + random(4); changes > 0; --changes) {
    const std::size_t at = random(text.size() + 1), size = random(8);
    switch (random(4)) {
      case 0:
        text.insert(at, parts[random(N)]);
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(at, text.substr(at, size));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random(256));
    }
  }
  return text;
}

TEST(MutatedVocabulary, PatternsAreReadOrRefused) {
  constexpr std::string_view kParts[] = {"\\p{", "}",  "[",    "]", "(?",  "(?<=", "(?!",  ")", "{1,",
                                         "*",    "+",  "?",    "|", "\\s", "\\S",  "\\x{", "^", "\\u12",
                                         "-",    "&&", "(?i:", ".", "\\d", "\\",   "{",    "[^"};
  const std::string good =
      R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  int read = 0, refused = 0;
  for (std::uint64_t test = 0; test < 5000; ++test) {
    const std::string pattern = mutated(good, kParts, test);
    try {
      const PreTokenizer pre_tokenizer({{pattern}});
      PreTokenizer::Match match(pre_tokenizer);
      const std::string text = support::tricky_text(test, 30);
      std::string back;
      pre_tokenizer.pieces(text, match, [&](std::string_view piece) { back += piece; });
      ASSERT_EQ(back, text) << pattern;
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 500);
}

TEST(MutatedVocabulary, FilesAreReadOrRefused) {
  constexpr std::string_view kParts[] = {"\n",
                                         "\r\n",
                                         "##",
                                         "[UNK]",
                                         "\"",
                                         "{",
                                         "}",
                                         "null",
                                         "true",
                                         ": 3",
                                         "[",
                                         "]",
                                         ",",
                                         "-1",
                                         "99999999999",
                                         "\\u0000",
                                         "\"Split\"",
                                         "\"Regex\"",
                                         "\"special\": false"};
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n\xC3\xA9\n";
  const std::string tokens = byte_tokens();
  const std::string head =
      R"({"added_tokens": [{"id": 257, "content": "<|endoftext|>", "special": true}, {"id": 258, "content": "<t>",
  "special": false, "normalized": false}], "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence",
  "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]}, "post_processor": null, "model": {"type": "BPE",
  "ignore_merges": true, "merges": ["a b"], "vocab": {"ab": 256, )";
  const std::string json = head + tokens + "}}}";
  const TempDir dir;
  int read = 0, refused = 0;
  for (std::uint64_t test = 0; test < 2000; ++test) {
    const bool is_json = test % 2 == 0;
    // In the JSON only the settings are mutated, not the 256 bytes.
    const std::string contents = is_json ? mutated(head, kParts, test) + tokens + "}}}" : mutated(vocab, kParts, test);
    write_all(dir / (is_json ? "tokenizer.json" : "vocab.txt"), contents);
    try {
      const auto tokenizer = make_tokenizer(is_json ? "bpe" : "bert-cased", dir.path(), *io::posix_fs());
      const std::vector<std::int32_t> ids = tokenizer->encode("ab <t> 12 " + support::tricky_text(test, 20));
      tokenizer->decode(ids);
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
    std::filesystem::remove(dir / "tokenizer.json");
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace megalith::tokenizer
