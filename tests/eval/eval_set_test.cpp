#include "megalith/eval/eval_set.h"

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/data/byte_source.h"
#include "megalith/eval/detokenize.h"
#include "megalith/eval/figures.h"
#include "megalith/io/checksum.h"

#include "tests/test_data.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tokenizer::bytes;
using tokenizer::gpt2;

using Counts = std::vector<std::pair<std::string, Index>>;

std::string unpacked(const std::string& name) {
  const auto source = data::open_bytes(*io::posix_fs(), std::string(MEGALITH_TEST_DATA) + "/" + name);
  while (source->extend()) {
  }
  return std::string(source->window());
}

const std::string& wikitext() {
  static const std::string text = unpacked("wikitext/wiki103.test.tokens.xz");
  return text;
}

// The numbers are MT-17.1, 17.4 and 17.5; the checksum is that of the reference text, made by other code.
TEST(EvalSet, WikiTextHasThePublishedCounts) {
  const EvalSet set = wikitext_paper_set({wikitext(), "wiki.test.tokens"}, *gpt2(), 1024, 32);
  EXPECT_THAT(set.problems, IsEmpty());
  EXPECT_THAT(set.warnings, IsEmpty());
  EXPECT_EQ(set.counts, (Counts{{"original_words", 245'566},
                                {"tokens", 270'329},
                                {"windows", 8'417},
                                {"targets", 270'328},
                                {"unknown_words", 2'492},
                                {"retokenize_differences", 698}}));
  const std::string plain = detokenize_wikitext(strip(wikitext()));
  EXPECT_EQ(plain.size(), 1'231'041u);
  EXPECT_EQ(io::checksum(std::as_bytes(std::span(plain.data(), plain.size()))).hex(),
            "a20f50bcd773b785b428940a6006085c");
}

// Made of the same file, whose documents are those of the raw one.
TEST(EvalSet, HarnessDocumentsAreScoredApart) {
  std::string raw = wikitext();
  for (std::size_t at = 0; (at = raw.find("<unk>", at)) != std::string::npos;) raw.replace(at, 5, "unknown");
  const EvalSet set = wikitext_harness_set({raw, "wiki.test.raw"}, *gpt2(), 1024);
  EXPECT_THAT(set.problems, IsEmpty());
  EXPECT_EQ(set.count("documents"), 62);
  // A document has one more piece than words at either end where it begins and ends with white space.
  EXPECT_EQ(set.count("words"), 241'211 + 2 * 62);
  EXPECT_EQ(set.count("targets"), set.count("tokens"));
  EXPECT_EQ(static_cast<Index>(set.texts.size()), 62);
  for (const std::vector<std::int32_t>& ids : set.texts) EXPECT_EQ(ids.front(), gpt2()->end_of_document());
  EXPECT_EQ(set.targets(), set.count("targets"));
}

TEST(EvalSet, LambadaTokenisesAsCounted) {
  const std::string lines = unpacked("lambada/lambada_test.jsonl.xz");
  std::ifstream file(MEGALITH_TEST_DATA "/lambada/counts.json");
  const nlohmann::json want = nlohmann::json::parse(file), split = want.at("last_word_split");
  const EvalSet set = lambada_set({lines, "lambada"}, *gpt2(), 1024);
  EXPECT_THAT(set.problems, IsEmpty());
  Counts counts = {{"examples", want.at("examples")},
                   {"context_tokens", split.at("context_tokens")},
                   {"target_tokens", split.at("target_tokens")},
                   {"passages_cut", 0}};
  for (const auto& [targets, examples] : split.at("examples_by_target_tokens").items())
    counts.emplace_back("targets_of_" + targets, examples);
  EXPECT_EQ(set.counts, counts);
  EXPECT_EQ(set.targets(), 6'542);
}

TEST(EvalSet, LambadaCutsAtTheLastWordAndAtTheWindow) {
  const std::string lines =
      "{\"text\": \"ab cd  efg\"}\n\n{\"text\": \" x y \", \"n\": 1}\n{\"text\": \"\\u00e9 z\\n\"}";
  const EvalSet set = lambada_set({lines, "f"}, *bytes(), 6);
  ASSERT_EQ(set.passages.size(), 3u);
  const auto text = [&](std::size_t i) {
    return bytes()->decode(set.passages[i].ids) + "|" +
           bytes()->decode(set.passages[i].ids.subspan(static_cast<std::size_t>(set.passages[i].first_target)));
  };
  EXPECT_EQ(text(0), " cd efg| efg") << "two of the nine bytes are one too many for a window of six and its target";
  EXPECT_EQ(text(1), "x y| y");
  EXPECT_EQ(text(2), "\u00e9 z| z");
  EXPECT_EQ(set.count("passages_cut"), 1);
  EXPECT_EQ(set.count("targets_of_2"), 2);
  EXPECT_EQ(set.count("targets_of_4"), 1);
}

TEST(EvalSet, LambadaNamesEveryBadLine) {
  const std::string lines =
      "{\"text\": \"one\"}\nnot json\n{\"text\": 3}\n{\"text\": \"a bcdefgh\"}\n{\"text\": \"a b\"}\n{}\n";
  const EvalSet set = lambada_set({lines, "f.jsonl"}, *bytes(), 6);
  EXPECT_THAT(set.problems,
              ElementsAre("[f.jsonl] line 1: a passage of one word: must have words before the last one, which is the "
                          "target",
                          HasSubstr("[f.jsonl] line 2"), HasSubstr("[f.jsonl] line 3"),
                          "[f.jsonl] line 4: a last word of 8 tokens: must be of 1 to the 6 of a window",
                          HasSubstr("[f.jsonl] line 6")));
  EXPECT_THAT(set.passages, IsEmpty());
}

TEST(EvalSet, LossHoldsTheIdsOfATextOfKnownSizeOnce) {
  const auto ids = bytes();  // it outlives the text
  LossText text(*ids);
  text.expect_text(1000);
  for (int i = 0; i < 100; ++i) text.add_ids(std::vector<std::int32_t>(10, 'a'));
  text.end_document(1000);
  const EvalSet set = text.finish("f", 4, 4);
  EXPECT_EQ(set.texts.front().size(), 1001u);
  EXPECT_EQ(set.texts.front().capacity(), 1001u) << "ids that grow are copied, and held twice meanwhile";
}

TEST(EvalSet, LossJoinsDocuments) {
  const EvalSet set = loss_set({{"abc", "f"}, {"de", "f"}}, *bytes(), 4, 4);
  EXPECT_EQ(set.counts, (Counts{{"documents", 2}, {"bytes", 5}, {"tokens", 7}, {"windows", 2}, {"targets", 6}}));
  EXPECT_EQ(set.texts.front(), (std::vector<std::int32_t>{'a', 'b', 'c', 0, 'd', 'e', 0}));
}

TEST(EvalSet, BadTextsAreRefusedWithLineAndFix) {
  const auto problems = [](const EvalSet& set) { return set.problems; };
  const std::string plain = "= Title =\n\nplain text (already) detokenised.", wiki = " = Title = \n a @-@ b \n";
  EXPECT_THAT(problems(wikitext_paper_set({" \n", "f"}, *bytes(), 8, 2)),
              ElementsAre("[f] is empty: must hold text; is it the right file?"));
  EXPECT_THAT(problems(wikitext_paper_set({"a\nb\xff", "f"}, *bytes(), 8, 2)),
              ElementsAre("[f] line 2, byte 3 of the file: must be UTF-8; convert the file, as by iconv"));
  EXPECT_THAT(problems(wikitext_paper_set({plain, "f"}, *bytes(), 8, 2)),
              ElementsAre(HasSubstr("[f] line 1: has neither \" @-@ \" nor a heading \" = ... = \" anywhere, so it is "
                                    "detokenised already: must be WikiText as published")));
  EXPECT_THAT(problems(wikitext_harness_set({wiki + " <unk> \n", "f"}, *bytes(), 8)),
              ElementsAre(HasSubstr("[f] line 3: has <unk>, and so it is not the raw file: must have none for "
                                    "--protocol harness; give wiki.test.raw")));
  EXPECT_THAT(problems(wikitext_paper_set({"\xef\xbb\xbf" + wiki, "f"}, *bytes(), 8, 2)),
              ElementsAre(HasSubstr("[f] line 1: begins with a byte-order mark: must be WikiText as published")));
  EXPECT_THAT(problems(wikitext_harness_set({wiki + "b \r\n", "f"}, *bytes(), 8)),
              ElementsAre(HasSubstr("[f] line 3: ends with CR LF: must be WikiText as published")));
  EXPECT_THAT(problems(lambada_set({"{\"text\": \" \"}\n{\"txt\": \"a b\"}\n{\"text\": 7}", "f"}, *bytes(), 8)),
              ElementsAre("[f] line 1: text is empty: must have two words or more; remove the line",
                          "[f] line 2, key \"text\": is missing; did you mean txt? a line is {\"text\": \"...\"}",
                          "[f] line 3, key \"text\": must be a string; a line is {\"text\": \"...\"}"));
  std::string bad;
  for (int i = 0; i < 103; ++i) bad += "no\n";
  const EvalSet many = lambada_set({bad, "f"}, *bytes(), 8);
  EXPECT_EQ(many.problems.size(), 20u);
  EXPECT_EQ(many.more_problems, 83);
  EXPECT_THAT(problems(loss_set({{"a", "f"}}, *bytes(), 8, 8)),
              ElementsAre("[f] text of 1 token: must be of two or more, as the first one has nothing before it"));
  const EvalSet raw = wikitext_paper_set({wiki, "f"}, *bytes(), 8, 2);
  EXPECT_THAT(raw.problems, IsEmpty());
  EXPECT_THAT(raw.warnings, ElementsAre(HasSubstr("[f] has no <unk>: the paper's figures are of wiki.test.tokens")));
}

EvalSet counted(const Counts& counts) {
  EvalSet set;
  set.counts = counts;
  return set;
}

double figure(const Figures& figures, std::string_view wanted) {
  for (const auto& [name, value] : figures) {
    if (name == wanted) return value;
  }
  ADD_FAILURE() << wanted;
  return 0;
}

// MT-17.6, and vectors/model-training.json: what one perplexity is in other words.
TEST(Figures, PerplexitiesOfThePaperAreEquivalent) {
  const struct {
    double perplexity, sum, per_subword, unadjusted;
  } rows[] = {{10.81, 584562.897, 2.162413, 8.69208},
              {12.76, 625288.458, 2.313065, 10.1053},
              {19.31, 727028.371, 2.689421, 14.7231},
              {15.79, 677609.13, 2.506609, 12.2633}};
  const EvalSet set = counted({{"original_words", 245'566}, {"tokens", 270'329}});
  for (const auto& row : rows) {
    const std::vector<ExampleResult> results = {{.log_probability = -row.sum / 2}, {.log_probability = -row.sum / 2}};
    const Figures found = figures(Task::wikitext_paper, set, results);
    EXPECT_NEAR(figure(found, "adjusted_perplexity"), row.perplexity, 1e-6);
    EXPECT_NEAR(figure(found, "sum_loss"), row.sum, 1e-9);
    EXPECT_NEAR(figure(found, "loss_per_subword"), row.per_subword, 1e-6);
    EXPECT_NEAR(figure(found, "unadjusted_perplexity"), row.unadjusted, 1e-4);
  }
  EXPECT_NEAR(figure(figures(Task::wikitext_paper, set, {}), "tokens_per_word"), 1.100841, 1e-6);
}

TEST(Figures, OthersAreByTheirFormulas) {
  const std::vector<ExampleResult> results = {{-2.0, 2, true}, {-1.0, 1, false}, {-3.0, 2, false}, {-0.5, 1, true}};
  const Figures harness = figures(Task::wikitext_harness, counted({{"words", 4}, {"bytes", 13}}), results);
  EXPECT_NEAR(figure(harness, "word_perplexity"), std::exp(6.5 / 4), 1e-12);
  EXPECT_NEAR(figure(harness, "byte_perplexity"), std::exp(0.5), 1e-12);
  EXPECT_NEAR(figure(harness, "bits_per_byte"), 0.5 / std::log(2.0), 1e-12);
  const Figures loss = figures(Task::loss, counted({{"targets", 13}, {"bytes", 26}}), results);
  EXPECT_NEAR(figure(loss, "loss"), 0.5, 1e-12);
  EXPECT_NEAR(figure(loss, "perplexity"), std::exp(0.5), 1e-12);
  EXPECT_NEAR(figure(loss, "bits_per_byte"), 0.25 / std::log(2.0), 1e-12);
  const Figures lambada = figures(Task::lambada, counted({{"examples", 4}}), results);
  EXPECT_NEAR(figure(lambada, "accuracy"), 0.5, 1e-12);
  EXPECT_EQ(figure(lambada, "correct"), 2);
  EXPECT_EQ(figure(lambada, "correct_of_1"), 1);
  EXPECT_EQ(figure(lambada, "correct_of_2"), 1);
  EXPECT_NEAR(figure(lambada, "perplexity"), std::exp(6.5 / 4), 1e-12);
}

TEST(Figures, AnExampleIsCorrectOnlyWithEveryTarget) {
  const std::vector<std::int32_t> ids = {5, 6, 7, 8};
  const Passage passage{ids, 2};
  EXPECT_EQ(result_of(passage, {{-1, -2}, {7, 8}}), (ExampleResult{-3, 2, true}));
  EXPECT_EQ(result_of(passage, {{-1, -2}, {7, 9}}), (ExampleResult{-3, 2, false})) << "the last subword is wrong";
  EXPECT_EQ(result_of(passage, {{-1, -2}, {9, 8}}), (ExampleResult{-3, 2, false})) << "the first subword is wrong";
  EXPECT_EQ(result_of(passage, {{-1, -2}, {}}), (ExampleResult{-3, 2, false})) << "not asked for";
}

}  // namespace
}  // namespace megalith::eval
