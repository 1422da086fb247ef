#include "megalith/corpus/overlap.h"

#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/corpus/ngram_table.h"
#include "megalith/corpus/normal_words.h"

#include "tests/corpus/dedup_run.h"

namespace megalith::corpus {
namespace {

using support::files_of;
using support::line;
using support::lines_of;
using support::words;

class OverlapOf : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  OverlapReport run() {
    options_.output = dir_ / str("out", runs_++);
    return measure_overlap(*io::posix_fs(), options_);
  }

  TempDir dir_;
  OverlapOptions options_;
  int runs_ = 0;
};

TEST_F(OverlapOf, CountsOccurrencesAndDistinctNgrams) {
  options_.ngram = 2;
  options_.train = {file("train.jsonl", line("The cat SAT.") + line("on a mat"))};
  // the-cat, cat-sat, sat-the, the-cat, cat-on | sat-on (not across documents) | too short
  options_.test = {file("test.jsonl", line("the cat sat the cat on") + line("sat on") + line("cat") + line("..."))};
  const TestFileCounts counts = run().test.at(0);
  EXPECT_EQ(counts.documents, 4u);
  EXPECT_EQ(counts.short_documents, 2u);
  EXPECT_EQ(counts.words, 9u);
  EXPECT_EQ(counts.ngrams, 6u);
  EXPECT_EQ(counts.found, 3u);
  EXPECT_EQ(counts.distinct_ngrams, 5u);
  EXPECT_EQ(counts.distinct_found, 2u);
  const auto lines = lines_of(read_all(options_.output / "per_document.jsonl"));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "{\"file\":\"" + (dir_ / "test.jsonl").string() +
                          "\",\"document\":1,\"words\":6,\"ngrams\":5,\"found\":3,\"share\":0.6}");
  EXPECT_EQ(nlohmann::json::parse(lines[3])["share"], nullptr);
  const auto report = nlohmann::json::parse(read_all(options_.output / "report.json"));
  EXPECT_EQ(report["test"][0]["share"], 0.5);
  EXPECT_EQ(report["test"][0]["distinct_share"], 0.4);
  EXPECT_EQ(report["train"]["words"], 6);
}

TEST_F(OverlapOf, TheThreeCasesOfTheRule) {
  const std::string test = line(words("a", 40)) + line(words("b", 9));
  options_.test = {file("test.jsonl", test), file("short.jsonl", line(words("a", 7)) + line(""))};
  options_.train = {file("copy.jsonl", line(words("z", 20)) + test)};
  OverlapReport report = run();
  EXPECT_EQ(report.test[0].ngrams, 35u);
  EXPECT_EQ(report.test[0].found, 35u) << "a copy: 100 %";
  EXPECT_EQ(report.test[0].distinct_found, report.test[0].distinct_ngrams);
  EXPECT_EQ(report.test[1].ngrams, 0u) << "no n-grams, no division";
  EXPECT_EQ(report.test[1].short_documents, 2u);
  options_.train = {file("other.jsonl", line(words("z", 100)))};
  EXPECT_EQ(run().test[0].found, 0u) << "no word is shared";
}

/// A text that repeats itself, in many scripts, with marks between words.
std::string prose(std::uint64_t seed, std::uint64_t count) {
  const RandomSite site{.seed = seed};
  const std::vector<std::string> all{"the", "The", "\u00E9t\u00E9", "\u0416\u0443\u043A", "42",
                                     "of",  "a",   "\u65E5\u672C"};
  const std::vector<std::string> between{" ", ", ", "\n", " -- ", ". ", "\u3001", "\t"};
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i)
    text += all[site.word(2 * i) % all.size()] + between[site.word(2 * i + 1) % between.size()];
  return text;
}

TEST_F(OverlapOf, EqualsALoopOverSets) {
  for (const int n : {1, 3, 8}) {
    const std::string train = prose(1, 3000), test = prose(2, 800);
    const auto grams = [&](const std::string& text) {
      NormalWords normal;
      normal.read(text);
      std::vector<std::string> out;
      for (std::size_t i = 0; i + static_cast<std::size_t>(n) <= normal.size(); ++i)
        out.emplace_back(normal.joined(i, static_cast<std::size_t>(n)));
      return out;
    };
    const auto train_grams = grams(train), test_grams = grams(test);
    const std::set<std::string> held(train_grams.begin(), train_grams.end());
    std::set<std::string> distinct(test_grams.begin(), test_grams.end()), distinct_found;
    std::uint64_t found = 0;
    for (const std::string& gram : test_grams)
      if (held.contains(gram)) ++found, distinct_found.insert(gram);
    options_.ngram = n;
    options_.train = {file("train.txt", train)};
    options_.test = {file("test.txt", test)};
    for (const std::size_t block : {20, 100, 1 << 20})
      for (const int threads : {1, 7}) {
        options_.reading.block_bytes = block;
        options_.threads = threads;
        const OverlapReport report = run();
        EXPECT_EQ(report.test[0].ngrams, test_grams.size());
        EXPECT_EQ(report.test[0].found, found) << n << ' ' << block << ' ' << threads;
        EXPECT_EQ(report.test[0].distinct_ngrams, distinct.size());
        EXPECT_EQ(report.test[0].distinct_found, distinct_found.size());
        EXPECT_EQ(report.train_words, train_grams.size() + static_cast<std::size_t>(n) - 1);
        EXPECT_EQ(report.train_documents, 1u);
      }
  }
}

// Every word occurs once, so that an n-gram has no second place to be found at. A text is cut where about a megabyte of
// it is in sight; the long words make pieces of fewer words than an n-gram has.
TEST_F(OverlapOf, AnNgramAcrossACutIsFound) {
  const std::string long_words =
      std::string(1 << 20, 'x') + " in " + std::string(1 << 20, 'y') + " " + std::string(1 << 20, 'z') + " ";
  const std::string text = words("t", 150'000) + " " + long_words + words("u", 150'000);
  options_.test = {file("test.txt", text)};
  options_.train = {file("train.txt", text + "\n")};
  for (const int n : {2, 3, 8})
    for (const int threads : {1, 3}) {
      options_.ngram = n;
      options_.threads = threads;
      const OverlapReport report = run();
      EXPECT_EQ(report.test[0].ngrams, 300'004u - static_cast<unsigned>(n) + 1);
      EXPECT_EQ(report.test[0].found, report.test[0].ngrams) << n << ' ' << threads;
    }
  // What ends a text is not carried into the next one.
  options_.ngram = 2;
  options_.train = {file("one.txt", "tw0"), file("two.txt", "tw1 tw2")};
  EXPECT_EQ(run().test[0].found, 1u);
}

TEST_F(OverlapOf, AnNgramIsHeldOnce) {
  NormalWords held, other;
  held.read("one two");
  other.read("one two");
  NgramTable table(2);
  std::vector<std::uint32_t> numbers;
  table.add(held, numbers);
  table.add(held, numbers);
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{0, 0}));
  EXPECT_EQ(table.size(), 1u);
  table.finish();
  EXPECT_FALSE(table.is_found(0));
  std::vector<std::uint64_t> hashes;
  table.mark(other, hashes);
  EXPECT_TRUE(table.is_found(0));
}

TEST_F(OverlapOf, RefusesWhatCannotBe) {
  options_.train = options_.test = {file("a.jsonl", line("a"))};
  options_.ngram = 0;
  EXPECT_NE(error_of<ConfigError>([&] { run(); }).find("--ngram = 0"), std::string::npos);
  options_.ngram = 8;
  options_.test = {dir_ / "b.jsonl"};
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("did you mean"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options_.output)) << "nothing is written";
  write_all(dir_ / "bad.jsonl", line("fine") + "{\"text\"}");
  options_.test = options_.train;
  options_.train = {dir_ / "bad.jsonl"};
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("bad.jsonl] line 2"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options_.output));
  options_.train = options_.test;
  options_.output = dir_.path();
  EXPECT_NE(error_of<ConfigError>([&] { measure_overlap(*io::posix_fs(), options_); }).find("has files"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::corpus
