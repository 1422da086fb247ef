#include "megalith/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/piece_stream.h"
#include "megalith/tokenizer/pre_tokenizer.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"

namespace megalith::tokenizer {
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

// The rows are what tokenizers 0.23.3 answers.
TEST(SplitPattern, TreatsMatchesAsTheBehaviorSays) {
  using Behavior = SplitRule::Behavior;
  const auto pieces = [](Behavior behavior, bool invert, std::string_view text) {
    return cut({{R"(\d)", behavior, invert}}, text);
  };
  EXPECT_EQ(pieces(Behavior::isolated, false, "ab12c"), (PatternPieces{"ab", "1", "2", "c"}));
  EXPECT_EQ(pieces(Behavior::isolated, true, "ab12c"), (PatternPieces{"ab", "1", "2", "c"}));
  EXPECT_EQ(pieces(Behavior::removed, false, "ab12c"), (PatternPieces{"ab", "c"}));
  EXPECT_EQ(pieces(Behavior::removed, true, "ab12c"), (PatternPieces{"1", "2"}));
  EXPECT_EQ(pieces(Behavior::merged_with_previous, false, "ab12c"), (PatternPieces{"ab1", "2", "c"}));
  EXPECT_EQ(pieces(Behavior::merged_with_previous, true, "ab12c"), (PatternPieces{"ab", "1", "2c"}));
  EXPECT_EQ(pieces(Behavior::merged_with_previous, false, "1a2"), (PatternPieces{"1", "a2"}));
  EXPECT_EQ(pieces(Behavior::merged_with_next, false, "ab12c"), (PatternPieces{"ab", "1", "2c"}));
  EXPECT_EQ(pieces(Behavior::merged_with_next, true, "ab12c"), (PatternPieces{"ab1", "2", "c"}));
  EXPECT_EQ(pieces(Behavior::merged_with_next, false, "1a2"), (PatternPieces{"1a", "2"}));
  EXPECT_EQ(pieces(Behavior::contiguous, false, "ab12c"), (PatternPieces{"ab", "12", "c"}));
  EXPECT_EQ(pieces(Behavior::contiguous, true, "1a23"), (PatternPieces{"1", "a", "23"}));
}

TEST(SplitPattern, GoesOnBehindMatchesOfNothing) {
  EXPECT_EQ(cut({{R"(\b)"}}, "ab cd"), (PatternPieces{"ab", " ", "cd"}));
  EXPECT_EQ(cut({{"x*"}}, "axxb"), (PatternPieces{"a", "xx", "b"}));
  EXPECT_EQ(cut({{"^"}}, "a\nb\n"), (PatternPieces{"a\n", "b\n"}));
  EXPECT_EQ(cut({{"$"}}, "a\nb\n"), (PatternPieces{"a", "\nb", "\n"}));
  EXPECT_EQ(cut({{"a||b"}}, "\u00E9ab"), (PatternPieces{"\u00E9", "a", "b"}));
  EXPECT_EQ(cut({{"(?:)", SplitRule::Behavior::contiguous}}, "a\U00011380"), (PatternPieces{"a", "\U00011380"}));
}

// What is left of a text when the matches are removed; tokenizers 0.23.3 leaves the same.
TEST(SplitPattern, ReadsOnigurumasSyntax) {
  struct Row {
    const char *pattern, *text;
    PatternPieces left;
  };
  const Row rows[] = {
      {R"(\w+)", "caf\u00E9 \u24D0\u00B2_-", {" ", "-"}},
      {R"([\w]+)", "caf\u00E9 \u24D0\u00B2_-", {" ", "\u00B2", "-"}},
      {R"(\W)", "a\u00B2 b", {"a\u00B2", "b"}},
      {R"(\bfoo\b)", "foo.xfoo", {".xfoo"}},
      {R"(\Boo)", "foo oo", {"f", " oo"}},
      {"^x", "x\nxx", {"\n", "x"}},
      {"x$", "x\nx\n", {"\n", "\n"}},
      {R"(\Ax|x\z)", "x\nx\nx", {"\nx\n"}},
      {R"(x\Z)", "x\nx\n", {"x\n", "\n"}},
      {".", "\r\n", {"\n"}},
      {"(?m).", "\r\n", {}},
      {R"((.)\1)", "aabcc", {"b"}},
      {R"((?<q>['"])\w(b)?\k<q>)", "'a'\"b'", {"\"b'"}},
      {"(?:(a)|b)\\1", "ab.aa", {"ab."}},
      {"(a)?(?(1)b|c)", "abcb", {"b"}},
      {"(?i)fOO", "Foo", {}},
      {"a(?i)b|C", "aB.aC.c", {".", ".c"}},
      {"(?:(?i)a)A", "AA.aa", {".aa"}},
      {"(?i)first", "\uFB01r\uFB06", {}},
      {"(?i)st+", "\uFB06stt", {"\uFB06"}},
      {R"((?i:[^\p{L}]))", "\u0345", {"\u0345"}},
      {R"((?i)\p{Lu})", "aA", {"a"}},
      {"a{1,2}+b", "xaaaab", {"x"}},
      {"a{3}?b", "xab", {"xa"}},
      {"a{2,1}", "aaa", {}},
      {"(?:ab){,2}c", "ababababc", {"abab"}},
      {"a**", "aab", {"b"}},
      {"a{x|}", "a{x}", {}},
      {R"(\x41\u0042\103\xC3\xA9)", "ABC\u00E9", {}},
      {R"(\h\R\O\N)", "f\r\n\na", {}},
      {R"([a-z&&[^aeiou]])", "abc", {"a"}},
      {R"([^a-c&&b-d]+)", "abcd", {"bc"}},
      {R"([^\S\n])", " \na", {"\na"}},
      {R"([\D]+)", "a1b", {"1"}},
      {R"([\P{L}x]+)", "ax1b", {"a", "b"}},
      {"[[:alpha:]_]+", "a_1", {"1"}},
      {"[[:punct:]]", "+!a", {"a"}},
      {R"(\p{Punct})", "+!a", {"+", "a"}},
      {R"(\p{Cn})", "a\u0378", {"a"}},
      {R"(\p{ upper-case_Letter })", "aA", {"a"}},
      {"(?x) a b # c", "ab", {}},
      {"(?#c)a", "ab", {"b"}},
      {R"(a\Kb)", "ab", {"a"}},
      {R"(\Ga)", "aab", {"b"}},
      {R"(\i\_\-)", "i_-", {}},
  };
  for (const Row& row : rows)
    EXPECT_EQ(cut({{row.pattern, SplitRule::Behavior::removed}}, row.text), row.left) << row.pattern;
}

TEST(SplitPattern, EndsPatternsThatTryTooMuch) {
  std::string text(40, 'a');
  text += "cb";
  const std::string error = error_of<InputError>([&] { cut({{"(?:a|a)+(?:a|a)+(?:a|a)+b"}}, text); });
  EXPECT_TRUE(error.starts_with("[split pattern 0] no match at byte 0 of a text of 42: match limit exceeded; "))
      << error;
}

TEST(SplitPattern, AppliesOneRuleAfterTheOther) {
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

TEST(SplitPattern, RefusesWhatPcre2CannotSay) {
  struct Row {
    const char *pattern, *error;
  };
  constexpr Row kRows[] = {
      {R"(\X)", "must not hold \\X: "},
      {R"(\y)", "must not hold \\y: "},
      {R"(\1)", "must not hold \\1: "},
      {R"((?<n>a)\1)", "must not hold \\1: "},
      {R"(\k<n>)", "must not hold \\k<n>: "},
      {R"((?<n>a)\g<n>)", "must not hold \\g: "},
      {R"((?s)a)", "must not hold (?s): "},
      {R"((?P<n>a))", "must not hold (?P<: "},
      {R"((?~a))", "must not hold (?~a: "},
      {R"((?<n>a)(?<n>b))", "must not hold n: "},
      {R"(*a)", "must not hold *: "},
      {R"((*FAIL))", "must not hold (*: "},
      {R"(^*a)", "must not hold *: "},
      {R"((?i)stra\u00DFe)", "must not hold \\x{00DF} within (?i): "},
      {R"((?i)[\p{L}])", "must not hold [\\p{L} within (?i): "},
      {R"((?i)[^\p{Lu}])", "must not hold [^\\p{Lu} within (?i): "},
      {R"((?i)[a&&b])", "must not hold && within (?i): "},
      {R"((?i)[\u00C0-\u00FF])", "must not hold [\\x{00C0}-\\x{00FF}] within (?i): "},
      {R"([]a])", "must not hold []: "},
      {R"([z-a])", "must not hold z-a: "},
      {R"([\w-z])", "must not hold - after a class: "},
      {R"([[:foo:]])", "must not hold [:foo:]: "},
      {R"(\p{L)", "must not hold \\p{: "},
      {R"(\pL)", "must not hold \\pL: "},
      {R"(\p{1})", "must not hold \\p{1}: "},
      {R"(\xFF)", "must not hold \\xFF: "},
      {R"(\x{})", "must not hold \\x{}: "},
      {R"(\u12)", "must not hold \\u12: "},
      {R"(\x{D800})", "must not hold \\x{D: "},
      {R"([a)", "must close its brackets"},
      {R"([a-)", "must close its brackets"},
      {R"([\0-)", "must close its brackets"},
      {"a\\", "must not end with a backslash"},
      {"\xFF", "must be UTF-8"},
      {R"((a)", "must not hold (: "},
      {R"(a))", "must not hold ): "},
      {R"((?<=a+)b)", "must be a pattern that PCRE2 takes: lookbehind assertion is not fixed length"},
      {R"(\p{Klingon})", "must be a pattern that PCRE2 takes: "},
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
      const std::string text = support::tricky_text(seed, 80);
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

/// The pieces of a text that comes in parts of about `step` bytes, which end where a character does.
PatternPieces streamed(PieceStream& stream, std::string_view text, std::size_t step) {
  PatternPieces found;
  const auto add = [&](std::string_view piece) { found.emplace_back(piece); };
  while (text.size() > step) {
    std::size_t size = step;
    while (incomplete_utf8_tail(text.substr(0, size)) > 0) ++size;
    stream.push(text.substr(0, size), false, add);
    text.remove_prefix(size);
  }
  stream.push(text, true, add);
  return found;
}

// DeepSeek's, a rule at a time; its last pattern is shortened.
const std::vector<SplitRule> kDeepSeek = {
    {R"(\p{N}{1,3})"},
    {R"([一-龥぀-ゟ゠-ヿ]+)"},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

TEST(PieceStream, GivesThePiecesOfTheWholeText) {
  using Behavior = SplitRule::Behavior;
  std::vector<std::vector<SplitRule>> all = {{gpt2_split()}, {{kGpt4}}, kDeepSeek};
  for (const char* pattern :
       {R"(\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+)",
        R"(\b)",
        R"(\B)",
        R"(\b\w+\b)",
        R"(\bab|g\b)",
        "$",
        "^",
        R"(\n^)",
        R"(\n^a)",
        R"(\s++$)",
        R"(^\s+)",
        R"(\A\w+|\w\z)",
        R"(\w\Z)",
        R"((?<=ab)\s*|1)",
        R"((?<=(?<=a)b)\w)",
        R"((?<=^ab)The)",
        R"((?<!\A)a|(?<=\b\W)b)",
        R"((?<!\s)\s+(?!\S)|\s+)",
        R"(a(?=[\s\S]*1))",
        R"(a(?![\s\S]{9}))",
        R"(\s*)",
        "a||b",
        "x*",
        R"([\s\S])",
        R"([\s\S]*?1)",
        R"([\s\S]+)",
        R"((\w)\1)",
        R"((?>a|ab)|b+?)",
        R"((?i)'s|the|ing)",
        R"(\R)",
        R"(\r\n|\n)",
        R"(\w+(?:'\w+)?|\b|^\s+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)"}) {
    for (const Behavior behavior : {Behavior::isolated, Behavior::removed, Behavior::merged_with_previous,
                                    Behavior::merged_with_next, Behavior::contiguous})
      for (const bool invert : {false, true}) all.push_back({{pattern, behavior, invert}});
    all.push_back({{R"(\d)", Behavior::merged_with_previous}, {pattern}, {R"(\s+$|^\w)", Behavior::contiguous}});
    all.push_back({{pattern, Behavior::merged_with_next}, {pattern, Behavior::contiguous, true}});
  }
  std::vector<std::string> texts = {"", "a", "\n", "ab ab\n\n"};
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    texts.push_back(support::tricky_text(seed, 60));
    texts.push_back(support::any_text(seed, 20) + "a\n" + support::any_text(seed + 9, 20));
  }
  for (const std::vector<SplitRule>& rules : all) {
    const PreTokenizer pre_tokenizer(rules);
    ASSERT_TRUE(pre_tokenizer.can_stream());
    PieceStream stream(pre_tokenizer);  // one for all: a text leaves nothing behind
    PreTokenizer::Match match(pre_tokenizer);
    for (const std::string& text : texts) {
      PatternPieces whole;
      pre_tokenizer.pieces(text, match, [&](std::string_view piece) { whole.emplace_back(piece); });
      for (const std::size_t step : {1, 2, 3, 7, 64, 1 << 20})
        ASSERT_EQ(streamed(stream, text, step), whole)
            << rules.front().pattern << ", behavior " << static_cast<int>(rules.front().behavior) << ", "
            << rules.size() << " rules, parts of " << step << ": " << text;
    }
  }
}

TEST(PieceStream, HoldsBackWhatIsNotDecidedOnly) {
  struct Row {
    std::vector<SplitRule> rules;
    std::string repeated;
  };
  const Row rows[] = {{{{R"(\s+(?!\S)|\s+|\w+)"}}, "word  "},
                      {{{R"(\d)"}, {R"(\w+)"}}, "no digit "},
                      {{{R"(\d)", SplitRule::Behavior::merged_with_next}, {R"((?<=\s)\w+)"}}, "no digit "},
                      {{{R"(\w)", SplitRule::Behavior::removed, true}}, "a -"}};
  for (const Row& row : rows) {
    const PreTokenizer pre_tokenizer(row.rules);
    PieceStream stream(pre_tokenizer);
    std::string part;
    while (part.size() < 10000) part += row.repeated;
    for (int i = 0; i < 100; ++i) stream.push(part, false, [](std::string_view) {});
    EXPECT_LT(stream.held_bytes(), 4 * part.size()) << row.rules.front().pattern;
  }
}

TEST(PieceStream, LeavesPatternsThatMoveTheirBegin) {
  EXPECT_FALSE(PreTokenizer({{R"(\Ga)"}}).can_stream());
  EXPECT_FALSE(PreTokenizer({{"b"}, {R"(a\Kb)"}}).can_stream());
  EXPECT_FALSE(PreTokenizer(std::vector<SplitRule>{}).can_stream()) << "the text is one piece";
  EXPECT_TRUE(PreTokenizer({{R"(\\Ga)"}}).can_stream());
}

TEST(SplitPattern, MatchesLongRunsWithoutTheStackOfTheJit) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(cut({{"(?:a|b)+c|a"}}, text.substr(0, 2000)).size(), 2000u);
  EXPECT_EQ(cut({{"(?:(a)|b)+"}}, text).size(), 1u);
}

}  // namespace
}  // namespace megalith::tokenizer
