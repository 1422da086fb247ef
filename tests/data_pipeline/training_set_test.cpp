#include "megalith/data/training_set.h"

#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/data_config.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;

/// A corpus whose tokens are first, first + 1, ...
SampleSet numbers(std::int32_t first, Index count, Index seq_len) {
  Ids ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<std::int32_t>(i);
  return SampleSet(memory_source(str("from ", first), ids, 1 << 20), {0, count}, seq_len);
}

TEST(TrainingSet, OneCorpusIsShuffledAsBefore) {
  const TrainingSet set({{numbers(0, 101, 4), 1}});
  const SampleOrder order = SampleOrder::shuffled(9, 25);
  Ids tokens(4 * 60), targets(4 * 60), wanted_tokens(4 * 60), wanted_targets(4 * 60);
  TrainingOrder(set, 9).fill(3, tokens, targets);
  fill_batch(order, set.corpora()[0].samples, 3, wanted_tokens, wanted_targets);
  EXPECT_EQ(tokens, wanted_tokens);
  EXPECT_EQ(targets, wanted_targets);
  EXPECT_EQ(set.count(), 25);
}

TEST(TrainingSet, SamplesComeInTheirProportions) {
  const TrainingSet set({{numbers(0, 401, 4), 3}, {numbers(100000, 41, 4), 1}});
  EXPECT_EQ(set.count(), 110);
  EXPECT_EQ(set.num_tokens(), 442);
  const Index n = 4000;
  Ids tokens(4 * n), targets(4 * n);
  TrainingOrder(set, 5).fill(0, tokens, targets);
  std::multiset<std::int32_t> small;
  for (std::size_t i = 0; i < tokens.size(); i += 4) {
    if (tokens[i] >= 100000) small.insert(tokens[i]);
    EXPECT_EQ(targets[i + 3], tokens[i] + 4);
  }
  EXPECT_NEAR(static_cast<double>(small.size()), 1000, 16);
  // 10 samples, each seen in every epoch of its own corpus.
  for (std::int32_t sample = 0; sample < 10; ++sample)
    EXPECT_NEAR(static_cast<double>(small.count(100000 + 4 * sample)), static_cast<double>(small.size()) / 10, 1);
}

TEST(TrainingSet, DoesNotDependOnHowTheRunWasCut) {
  const TrainingSet set({{numbers(0, 401, 4), 3}, {numbers(100000, 41, 4), 1}});
  Ids whole(4 * 64), targets(4 * 64), part(4 * 8), ignored(4 * 8);
  TrainingOrder(set, 5).fill(1000, whole, targets);
  for (Index at = 0; at < 64; at += 8) {
    TrainingOrder(set, 5).fill(1000 + at, part, ignored);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 4 * at));
  }
}

// A changed order would change every run that resumes: these values never change. The corpora are of one size, so that
// they would come in one order if they were shuffled by one seed.
TEST(TrainingSet, TheOrderOfABlendStaysWhatItIs) {
  const TrainingSet set({{numbers(0, 11, 1), 2}, {numbers(100, 11, 1), 1}, {numbers(200, 11, 1), 1}});
  const auto order = [&](std::uint64_t seed, Index first) {
    Ids tokens(20), targets(20);
    TrainingOrder(set, seed).fill(first, tokens, targets);
    return tokens;
  };
  EXPECT_EQ(order(1234, 0), (Ids{7, 101, 9, 203, 2, 102, 6, 200, 1, 105, 3, 208, 5, 108, 0, 209, 8, 100, 4, 206}));
  EXPECT_EQ(order(1234, 65530), (Ids{0, 202, 4, 106, 6, 203, 1, 109, 7, 206, 9, 100, 4, 208, 1, 107, 5, 209, 8, 103}))
      << "across blocks of the blend";
  EXPECT_EQ(order(0x100000002, 0),
            (Ids{7, 103, 0, 208, 5, 100, 4, 207, 9, 102, 6, 203, 1, 101, 2, 202, 3, 104, 8, 206}));
}

TEST(TrainingSet, FingerprintKnowsTheShares) {
  const auto of = [](double a, double b) {
    return TrainingSet({{numbers(0, 401, 4), a}, {numbers(100000, 41, 4), b}}).fingerprint();
  };
  EXPECT_EQ(of(3, 1), of(0.75, 0.25));
  EXPECT_NE(of(3, 1), of(2, 1));
}

class WeightedData : public ::testing::Test {
 protected:
  WeightedData() {
    write_all(dir_ / "a.txt", std::string(1000, 'a'));
    write_all(dir_ / "b b.txt", std::string(1000, 'b'));
  }
  std::string path(const char* name) const { return (dir_ / name).string(); }
  DataSets open(std::vector<std::string> train, std::vector<std::string> valid = {}, std::string split = "") const {
    DataConfig config{
        .tokenizer = "byte", .train = std::move(train), .valid = std::move(valid), .split = std::move(split)};
    return open_data(*io::posix_fs(), config, *tokenizer::bytes(), 10);
  }
  std::string error(std::vector<std::string> train, std::vector<std::string> valid = {}, std::string split = "") const {
    return error_of<ConfigError>([&] { open(std::move(train), std::move(valid), std::move(split)); });
  }
  TempDir dir_;
};

TEST_F(WeightedData, IsOpenedAsABlend) {
  const DataSets sets = open({"0.25 " + path("a.txt"), "0.75  " + path("b b.txt")}, {path("a.txt")});
  ASSERT_EQ(sets.train.corpora().size(), 2u);
  EXPECT_EQ(sets.train.blend().quota(0), 16384);
  EXPECT_EQ(sets.train.name(), str("0.25 ", path("a.txt"), ", 0.75 ", path("b b.txt")));
  EXPECT_TRUE(sets.valid.has_value());
  EXPECT_EQ(open({path("a.txt"), path("b b.txt")}).train.corpora().size(), 1u) << "without weights: joined";
}

TEST_F(WeightedData, MistakesAreExplained) {
  EXPECT_NE(error({"0.25 " + path("a.txt"), path("b b.txt")}).find("has no weight; give all paths one"),
            std::string::npos);
  EXPECT_NE(error({"0 " + path("a.txt"), "1 " + path("b b.txt")}).find("data.train: weight 0: must be above 0"),
            std::string::npos);
  EXPECT_NE(error({"1 " + path("a.txt")}, {"1 " + path("a.txt")}).find("data.valid: has weights"), std::string::npos);
  EXPECT_NE(error({"1 " + path("a.txt")}, {}, "0.9").find("does not go with a weighted data.train"), std::string::npos);
}

}  // namespace
}  // namespace megalith::data
