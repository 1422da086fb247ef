#include "megalith/tokenizer/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/pre_tokenizer.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

TEST(Gpt2Tokenizer, EncodesAndDecodesAllCases) {
  std::ifstream file(MEGALITH_TEST_DATA "/gpt2/encode_cases.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const nlohmann::json test = nlohmann::json::parse(line);
    const std::string text = from_hex(test["utf8_hex"]);
    ASSERT_EQ(text, test["text"].get<std::string>());
    const Ids want = test["ids"];
    EXPECT_EQ(gpt2()->encode(text), want) << test["kind"] << " " << test["n"] << ": " << test["text"];
    EXPECT_EQ(gpt2()->decode(want), text) << test["n"];
  }
  EXPECT_EQ(cases, 200);
}

TEST(Gpt2Tokenizer, KnowsItsVocabulary) {
  EXPECT_EQ(gpt2()->vocab_size(), 50257);
  EXPECT_EQ(gpt2()->end_of_document(), 50256);
  EXPECT_EQ(gpt2()->token_bytes(50256), "<|endoftext|>");
  EXPECT_EQ(gpt2()->name(), "gpt2");
  EXPECT_EQ(std::ranges::count(gpt2()->unicode_version(), '.'), 2) << "as 14.0.0: " << gpt2()->unicode_version();
  EXPECT_EQ(bytes()->unicode_version(), "");
  EXPECT_EQ(gpt2()->encode(""), Ids{});
  EXPECT_NE(gpt2()->encode("<|endoftext|>"), Ids{50256}) << "text never becomes a special token";
}

TEST(Gpt2Tokenizer, RandomUnicodeComesBack) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const std::string& text : {support::any_text(seed, 500), support::tricky_text(seed, 500)})
      EXPECT_EQ(gpt2()->decode(gpt2()->encode(text)), text) << "seed " << seed;
  }
}

std::vector<std::string> pieces(std::string_view text) {
  const PreTokenizer pre_tokenizer;
  PreTokenizer::Match match(pre_tokenizer);
  std::vector<std::string> found;
  pre_tokenizer.pieces(text, match, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

TEST(PreTokenizer, CutsAsThePatternSays) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("I'll say: don't!"), (Pieces{"I", "'ll", " say", ":", " don", "'t", "!"}));
  EXPECT_EQ(pieces("'Stop 'S 'sx ''re"), (Pieces{"'", "Stop", " '", "S", " '", "sx", " ''", "re"}));
  EXPECT_EQ(pieces("12ab 3\u00BD\u2167"), (Pieces{"12", "ab", " 3\u00BD\u2167"}));
  EXPECT_EQ(pieces("a  b\n\n c \t"), (Pieces{"a", " ", " b", "\n\n", " c", " \t"}));
  EXPECT_EQ(pieces("a\u00A0\u3000b"), (Pieces{"a", "\u00A0", "\u3000", "b"}));
  EXPECT_EQ(pieces("caf\u00E9\u0301 \u65E5\u672C"), (Pieces{"caf\u00E9", "\u0301", " \u65E5\u672C"}));
}

// U+180E was white space until Unicode 6.3 and PCRE2's own \s still takes it; the reference implementations do not.
TEST(PreTokenizer, MongolianVowelSeparatorIsNoWhiteSpace) {
  EXPECT_EQ(pieces(" \u180E-a"), (std::vector<std::string>{" \u180E-", "a"}));
  EXPECT_EQ(pieces(" \u200B\uFEFFa"), (std::vector<std::string>{" \u200B\uFEFF", "a"}));
}

TEST(Gpt2Tokenizer, PiecesBetweenCutsEncodeAlike) {
  for (const auto& tokenizer : {gpt2(), bytes()}) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const std::string text = support::tricky_text(seed, 60);
      const std::size_t step = 1 + seed % 20;
      Ids pieces;
      std::size_t cuts = 0;
      for (std::string_view rest = text; !rest.empty(); ++cuts) {
        const std::size_t end = tokenizer->next_cut(rest, step);
        ASSERT_GE(end, std::min(step, rest.size()));
        tokenizer->encode(rest.substr(0, end), pieces);
        rest.remove_prefix(end);
      }
      EXPECT_EQ(pieces, tokenizer->encode(text)) << tokenizer->name() << " seed " << seed;
      EXPECT_GE(cuts, tokenizer == bytes() ? text.size() / (step + 3) : 1);
    }
  }
  EXPECT_EQ(gpt2()->next_cut("one two  three", 1), 3u);
  EXPECT_EQ(gpt2()->next_cut("one two  three", 4), 7u);
  EXPECT_EQ(gpt2()->next_cut("one two  three", 8), 14u) << "not inside a run of spaces";
}

// A merge that looks at the whole word again after each step takes hours here.
TEST(Gpt2Tokenizer, LongWordsTakeNoQuadraticTime) {
  for (const char c : {'a', '-', ' ', '1'}) {
    const std::string text(300000, c);
    EXPECT_EQ(gpt2()->decode(gpt2()->encode(text)), text);
  }
}

TEST(Gpt2Tokenizer, NamesTheByteThatIsNotUtf8) {
  try {
    gpt2()->encode("good \xFF");
    FAIL() << "nothing was thrown";
  } catch (const EncodeError& error) {
    EXPECT_STREQ(error.what(), "[gpt2 tokenizer] byte 5 of the text must be UTF-8");
    EXPECT_EQ(error.offset(), 5u);
    EXPECT_EQ(error.code(), ExitCode::bad_input);
  }
}

TEST(Gpt2Tokenizer, NamesTheIdThatDoesNotExist) {
  EXPECT_EQ(error_of<InputError>([] {
              gpt2()->decode(Ids{1, 50257});
            }),
            "[gpt2 tokenizer] ids[1] = 50257: must be 0 to 50256");
  EXPECT_EQ(error_of<InputError>([] { gpt2()->decode(Ids{-1}); }), "[gpt2 tokenizer] ids[0] = -1: must be 0 to 50256");
}

TEST(Gpt2Tokenizer, ThreadsShareOne) {
  std::vector<std::string> texts;
  std::vector<Ids> want;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    texts.push_back(support::tricky_text(seed, 400));
    want.push_back(gpt2()->encode(texts.back()));
  }
  std::vector<int> wrong(4, 0);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        for (int round = 0; round < 5; ++round)
          for (std::size_t i = 0; i < texts.size(); ++i) wrong[t] += gpt2()->encode(texts[i]) != want[i];
      });
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(ByteTokenizer, IdsAreBytes) {
  EXPECT_EQ(bytes()->vocab_size(), 256);
  EXPECT_EQ(bytes()->end_of_document(), 0);
  EXPECT_EQ(bytes()->encode("A\xFF"), (Ids{65, 255}));
  EXPECT_EQ(bytes()->decode(Ids{65, 255, 0}), std::string("A\xFF\0", 3));
  EXPECT_EQ(error_of<InputError>([] { bytes()->decode(Ids{256}); }), "[byte tokenizer] ids[0] = 256: must be 0 to 255");
}

TEST(Tokenizer, UnknownNameIsExplained) {
  const auto fs = io::posix_fs();
  EXPECT_EQ(
      error_of<ConfigError>([&] { make_tokenizer("gtp2", {}, *fs); }),
      "tokenizer = \"gtp2\": must be gpt2, bpe, bert-uncased, bert-cased, sentencepiece or byte; did you mean gpt2?");
  EXPECT_EQ(
      error_of<ConfigError>([&] { make_tokenizer("gpt2", {}, *fs); }),
      "vocab_dir is not set: the gpt2 tokenizer reads tokenizer.json, or encoder.json and vocab.bpe, from that folder");
  const TempDir empty;
  EXPECT_EQ(error_of<InputError>([&] { make_tokenizer("gpt2", empty.path(), *fs); }),
            str("[", (empty / "encoder.json").string(),
                "] not found, nor vocab.json beside it; set vocab_dir to the folder with the vocabulary's two files or "
                "tokenizer.json"));
}

TEST(StreamDecoder, ShowsWholeCharactersOnly) {
  const std::string text = "\U0001F600 caf\u00E9 \u65E5\u672C\u8A9E " + support::any_text(3, 300);
  for (const auto& tokenizer : {gpt2(), bytes()}) {
    StreamDecoder decoder(tokenizer);
    std::string shown;
    for (const std::int32_t id : tokenizer->encode(text)) {
      const std::string part = decoder.push(id);
      EXPECT_EQ(valid_utf8_prefix(part), part.size());
      shown += part;
    }
    EXPECT_EQ(decoder.finish(), "");
    EXPECT_EQ(shown, text) << tokenizer->name();
  }
}

TEST(StreamDecoder, ShowsWhatCannotBecomeACharacter) {
  StreamDecoder decoder(bytes());
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push('x'), "\uFFFDx");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace megalith::tokenizer
