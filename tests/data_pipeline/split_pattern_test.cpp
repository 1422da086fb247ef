#include "megalith/data/split_pattern.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/pre_tokenizer.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"

namespace megalith::data {
namespace {

using PatternPieces = std::vector<std::string>;

constexpr const char* kGpt4 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

PatternPieces cut(const std::vector<SplitRule>& rules, std::string_view text) {
  const PreTokenizer pre_tokenizer(rules);
  PreTokenizer::Match match(pre_tokenizer);
  PatternPieces found;
  pre_tokenizer.pieces(text, match, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

TEST(SplitPattern, CutsAsGpt4) {
  EXPECT_EQ(cut({{kGpt4}}, "I'LL say: 12345..\n\n  x\ty"),
            (PatternPieces{"I", "'LL", " say", ":", " ", "123", "45", "..\n\n", " ", " x", "\ty"}));
  EXPECT_EQ(cut({{kGpt4}}, "don'\u017F"), (PatternPieces{"don", "'\u017F"})) << "a long s is an s in another case";
  EXPECT_EQ(cut({{kGpt4}}, "a\u180Eb"), (PatternPieces{"a", "\u180Eb"})) << "U+180E is no white space";
}

TEST(SplitPattern, KeepsOrDropsMatchesAndGaps) {
  EXPECT_EQ(cut({{R"(\d+)"}}, "ab12c"), (PatternPieces{"ab", "12", "c"}));
  EXPECT_EQ(cut({{.pattern = R"(\d+)", .keep_matches = false}}, "ab12c"), (PatternPieces{"ab", "c"}));
  EXPECT_EQ(cut({{.pattern = R"(\d+)", .keep_gaps = false}}, "ab12c"), PatternPieces{"12"});
  EXPECT_EQ(cut({{R"(\p{N})"}, {R"([^\s]+)"}}, "ab 12"), (PatternPieces{"ab", " ", "1", "2"})) << "one after the other";
  EXPECT_EQ(cut({}, "a b"), PatternPieces{"a b"});
  EXPECT_EQ(cut({{"x"}}, ""), PatternPieces{});
}

TEST(SplitPattern, SpellsOutWhatTheLibrariesReadDifferently) {
  EXPECT_EQ(compile_rule({R"(\s[\s]\S)"}).pcre2, R"([\t-\r\x{85}\p{Z}][\t-\r\x{85}\p{Z}][^\t-\r\x{85}\p{Z}])");
  EXPECT_EQ(compile_rule({R"(\p{Zs}[\p{Pe}x]\P{Nl}\p{^Sc}\u2028\x{3040}\v)"}).pcre2,
            R"([\p{Zs}][\p{Pe}x][^\p{Nl}][^\p{Sc}]\x{2028}\x{3040}\x0B)");
  EXPECT_TRUE(compile_rule({R"(\p{Han})"}).pcre2.starts_with(R"([\p{sc:Han}\x{2B739})"));
}

TEST(SplitPattern, KnowsCharactersThatPcre2DoesNot) {
  EXPECT_EQ(cut({gpt2_split()}, "a\U00013498b's \U00016130\x31"),
            (PatternPieces{"a\U00013498b", "'s", " \U00016130\x31"}));
  EXPECT_EQ(cut({{R"(\p{Lu})"}}, "a\U00010D50b"), (PatternPieces{"a", "\U00010D50", "b"}));
}

TEST(SplitPattern, RefusesWhatIsReadDifferently) {
  struct Row {
    const char *pattern, *error;
  };
  constexpr Row kRows[] = {
      {R"(\bword)", "must not hold \\b: "},
      {R"(\w+)", "must not hold \\w: "},
      {R"((?<name>a))", "must not hold (?<n: "},
      {R"((?i)a)", "must not hold (?i): "},
      {R"(^a)", "must not hold ^: "},
      {R"(a$)", "must not hold $: "},
      {R"([a[b]])", "must not hold [ within brackets: "},
      {R"([a&&b])", "must not hold && within brackets: "},
      {R"([^\S\n])", "must not hold \\S within brackets: "},
      {R"([]a])", "must not hold []: "},
      {R"(a{,3})", "must not hold {,: "},
      {R"(a{1,3}+)", "must not hold }+: "},
      {R"(\1)", "must not hold \\1: "},
      {R"(\p{L)", "must not hold \\p{: "},
      {R"(\p{Cn})", "must not hold \\p{Cn}: "},
      {R"([\P{L}x])", "must not hold \\P{L} within brackets: "},
      {R"([\D])", "must not hold \\D within brackets: "},
      {R"(\pL)", "must not hold \\pL: "},
      {R"(\xFF)", "must not hold \\xFF: "},
      {R"(\x{})", "must not hold \\x{}: "},
      {R"([a)", "must close its brackets"},
      {"a\\", "must not end with a backslash"},
      {R"((a)", "must be a pattern that PCRE2 takes: "},
      {R"(\p{Klingon})", "must not hold \\p{Klingon}: "},
      {R"(a*)", "must not match the empty text"},
      {R"(a|)", "must not match the empty text"},
  };
  for (const Row& row : kRows) {
    const std::string error = error_of<InputError>([&] { PreTokenizer({{row.pattern}}); });
    EXPECT_TRUE(error.starts_with(row.error)) << row.pattern << ": " << error;
  }
}

TEST(SplitPattern, IsCutChangesNoPieces) {
  for (const char* pattern : {"gpt2", kGpt4}) {
    const std::vector<SplitRule> rules = {pattern == kGpt4 ? SplitRule{kGpt4} : gpt2_split()};
    const PreTokenizer pre_tokenizer(rules);
    int cuts = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const std::string text = testing::tricky_text(seed, 80);
      const PatternPieces whole = cut(rules, text);
      for (std::size_t p = 1; p < text.size(); ++p) {
        if (!pre_tokenizer.is_cut(text, p)) continue;
        ++cuts;
        PatternPieces parts = cut(rules, text.substr(0, p));
        for (const std::string& piece : cut(rules, text.substr(p))) parts.push_back(piece);
        ASSERT_EQ(parts, whole) << "seed " << seed << ", cut at " << p;
      }
    }
    EXPECT_GT(cuts, 100);
  }
  EXPECT_EQ(PreTokenizer({{R"(\p{L}+)"}}).next_cut("ab cd", 0), 5u);
  EXPECT_EQ(PreTokenizer().next_cut("ab cd", 0), 2u);
}

TEST(SplitPattern, MatchesLongRunsWithoutTheStackOfTheJit) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(cut({{"(?:a|b)+c|a"}}, text.substr(0, 2000)).size(), 2000u);
  EXPECT_EQ(cut({{"(?:(a)|b)+"}}, text).size(), 1u);
}

}  // namespace
}  // namespace megalith::data
