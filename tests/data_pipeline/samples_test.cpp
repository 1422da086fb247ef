#include "megalith/data/samples.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;

TokenSourcePtr counting_source(Index count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return memory_source("counting", ids, count);
}

std::vector<Index> epoch_order(const SampleOrder& order, Index epoch) {
  std::vector<Index> samples;
  for (Index i = 0; i < order.count(); ++i) samples.push_back(order.sample(epoch * order.count() + i));
  return samples;
}

TEST(SampleOrder, EveryEpochIsAPermutation) {
  for (const Index count : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 65, 97, 255, 256, 257, 1000, 1009, 4096, 10007}) {
    for (const Index epoch : {0, 1, 2, 1000000}) {
      std::vector<Index> samples = epoch_order(SampleOrder::shuffled(42, count), epoch);
      std::sort(samples.begin(), samples.end());
      for (Index i = 0; i < count; ++i)
        ASSERT_EQ(samples[static_cast<std::size_t>(i)], i) << count << " epoch " << epoch;
    }
  }
}

TEST(SampleOrder, HugeCountsStayInRangeAndDistinct) {
  for (const Index count : {(Index{1} << 32) - 1, Index{1} << 40, (Index{1} << 60) + 12345}) {
    const SampleOrder order = SampleOrder::shuffled(7, count);
    std::set<Index> seen;
    for (Index i = 0; i < 3000; ++i) {
      const Index sample = order.sample(i);
      ASSERT_TRUE(sample >= 0 && sample < count);
      EXPECT_TRUE(seen.insert(sample).second);
    }
    EXPECT_GT(*seen.rbegin(), count / 2) << "spread over the whole range";
  }
}

TEST(SampleOrder, SeedsAndEpochsDiffer) {
  const std::vector<Index> order = epoch_order(SampleOrder::shuffled(1, 1000), 0);
  EXPECT_NE(order, epoch_order(SampleOrder::shuffled(1, 1000), 1));
  EXPECT_NE(order, epoch_order(SampleOrder::shuffled(2, 1000), 0));
  EXPECT_NE(order, epoch_order(SampleOrder::shuffled(std::uint64_t{1} << 32 | 1, 1000), 0))
      << "all 64 bits of the seed";
  EXPECT_EQ(order, epoch_order(SampleOrder::shuffled(1, 1000), 0));
}

// A changed order would change every run that resumes: these values never change.
TEST(SampleOrder, StaysWhatItIs) {
  EXPECT_EQ(epoch_order(SampleOrder::shuffled(1234, 10), 0), (std::vector<Index>{7, 9, 2, 6, 1, 3, 5, 0, 8, 4}));
  EXPECT_EQ(epoch_order(SampleOrder::shuffled(1234, 10), 1), (std::vector<Index>{8, 0, 6, 2, 3, 4, 7, 9, 1, 5}));
}

// With n orders, each of k! comes about n/k! times; 5 standard deviations is once in two million.
TEST(SampleOrder, AllOrdersOfFewSamplesAreEquallyFrequent) {
  constexpr int kEpochs = 24000;
  for (const Index count : {2, 3, 4}) {
    std::map<std::vector<Index>, int> seen;
    const SampleOrder order = SampleOrder::shuffled(5, count);
    for (Index epoch = 0; epoch < kEpochs; ++epoch) ++seen[epoch_order(order, epoch)];
    const double kinds = std::tgamma(static_cast<double>(count) + 1);
    ASSERT_EQ(static_cast<double>(seen.size()), kinds);
    const double mean = kEpochs / kinds;
    for (const auto& [samples, times] : seen) EXPECT_NEAR(times, mean, 5 * std::sqrt(mean)) << "of " << count;
  }
}

double correlation(const std::vector<Index>& a, const std::vector<Index>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = static_cast<double>(std::accumulate(a.begin(), a.end(), Index{0})) / n;
  const double mean_b = static_cast<double>(std::accumulate(b.begin(), b.end(), Index{0})) / n;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]) - mean_a, y = static_cast<double>(b[i]) - mean_b;
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

TEST(SampleOrder, NeighboursAndEpochsAreUncorrelated) {
  for (const Index count : {1000, 10007, 65536}) {
    const SampleOrder order = SampleOrder::shuffled(9, count);
    const std::vector<Index> first = epoch_order(order, 0), second = epoch_order(order, 1);
    const double bound = 5 / std::sqrt(static_cast<double>(count));
    EXPECT_LT(std::abs(correlation({first.begin(), first.end() - 1}, {first.begin() + 1, first.end()})), bound)
        << count;
    EXPECT_LT(std::abs(correlation(first, second)), bound) << count;
    std::vector<Index> identity(first.size());
    std::iota(identity.begin(), identity.end(), 0);
    EXPECT_LT(std::abs(correlation(first, identity)), bound) << count;
  }
}

TEST(SampleOrder, SequentialIsTheIdentity) {
  const SampleOrder order = SampleOrder::sequential(3);
  for (Index n = 0; n < 9; ++n) EXPECT_EQ(order.sample(n), n % 3);
  EXPECT_EQ(order.epoch(8), 2);
  EXPECT_THROW(order.sample(-1), ShapeError);
  EXPECT_THROW(SampleOrder::sequential(0), ShapeError);
}

TEST(SampleSet, CutsARangeIntoSamples) {
  const SampleSet set(counting_source(100), {10, 31}, 5);
  EXPECT_EQ(set.count(), 4);
  Ids tokens(5), targets(5);
  set.copy(0, tokens, targets);
  EXPECT_EQ(tokens, (Ids{10, 11, 12, 13, 14}));
  EXPECT_EQ(targets, (Ids{11, 12, 13, 14, 15}));
  set.copy(3, tokens, targets);
  EXPECT_EQ(tokens, (Ids{25, 26, 27, 28, 29}));
  EXPECT_EQ(targets, (Ids{26, 27, 28, 29, 30}));
  EXPECT_THROW(set.copy(4, tokens, targets), ShapeError);
  EXPECT_EQ(SampleSet(counting_source(100), {10, 30}, 5).count(), 3) << "the last target would lie outside";
  EXPECT_EQ(SampleSet(counting_source(2), {0, 2}, 1).count(), 1);
  EXPECT_EQ(error_of<InputError>([] {
              SampleSet(counting_source(100), {10, 15}, 5);
            }),
            "[counting] 5 tokens in this part: one sample of seq_len 5 takes 6");
  EXPECT_THROW(SampleSet(counting_source(10), {0, 11}, 5), ShapeError);
}

TEST(Split, CoversAllTokensOnce) {
  for (const std::string_view text : {"969,30,1", "0.95", "1", "1,0,1", "0.3, 0.3, 0.4", "1e-9,1"}) {
    for (const Index tokens : {0, 1, 2, 10, 999, 1000003}) {
      const auto parts = parse_split(text).ranges(tokens);
      EXPECT_EQ(parts[0].begin, 0);
      EXPECT_EQ(parts[0].end, parts[1].begin);
      EXPECT_EQ(parts[1].end, parts[2].begin);
      EXPECT_EQ(parts[2].end, tokens) << text;
    }
  }
  EXPECT_EQ(parse_split("969,30,1").ranges(1000), (std::array<TokenRange, 3>{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(parse_split("0.9").ranges(1000), (std::array<TokenRange, 3>{{{0, 900}, {900, 1000}, {1000, 1000}}}));
  EXPECT_EQ(parse_split("1").ranges(7), (std::array<TokenRange, 3>{{{0, 7}, {7, 7}, {7, 7}}}));
}

TEST(Split, ExplainsWhatIsWrong) {
  const auto error = [](std::string_view text) { return error_of<ConfigError>([&] { parse_split(text); }); };
  EXPECT_EQ(error("1,2,3,4"), "data.split = \"1,2,3,4\": must be at most three numbers: train, valid, test");
  EXPECT_EQ(error("9,x"),
            "data.split = \"9,x\": \"x\" must be a number that is not negative; write \"969,30,1\" or \"0.95\"");
  for (const std::string_view bad : {"", "1,", "-1,2", "nan", "inf", "1;2", "1 2"})
    EXPECT_NE(error(bad).find("must be a number that is not negative"), std::string::npos) << bad;
  EXPECT_EQ(error("95"), "data.split = \"95\": one number is the fraction of train: must be from 0 to 1");
  EXPECT_EQ(error("0,1"), "data.split = \"0,1\": the part of train, the first number, must be above 0");
}

struct Batch {
  Ids tokens, targets;
  explicit Batch(Index size) : tokens(static_cast<std::size_t>(size)), targets(tokens.size()) {}
  bool operator==(const Batch&) const = default;
};

Batch batch_of(const SampleOrder& order, const SampleSet& set, Index first, Index count) {
  Batch batch(count * set.seq_len());
  fill_batch(order, set, first, batch.tokens, batch.targets);
  return batch;
}

// What resume and another number of ranks rest on: a batch depends on its global sample numbers and on nothing else.
TEST(FillBatch, DoesNotDependOnHowTheRunWasCut) {
  const SampleSet set(counting_source(1000), {0, 1000}, 7);
  const SampleOrder order = SampleOrder::shuffled(3, set.count());
  const Index steps = 40, global_batch = 8;  // passes the end of an epoch twice
  for (const Index dp : {1, 2, 4, 8}) {
    for (Index step = 0; step < steps; ++step) {
      const Batch whole = batch_of(order, set, step * global_batch, global_batch);
      Batch joined(0);
      for (Index rank = 0; rank < dp; ++rank) {
        const SampleOrder resumed = SampleOrder::shuffled(3, set.count());
        const Index each = global_batch / dp;
        const Batch part = batch_of(resumed, set, step * global_batch + rank * each, each);
        joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
        joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
      }
      ASSERT_EQ(joined, whole) << "dp " << dp << " step " << step;
    }
  }
}

TEST(FillBatch, AnEpochVisitsEveryTokenOnce) {
  const SampleSet set(counting_source(71), {0, 71}, 7);
  const Batch epoch = batch_of(SampleOrder::shuffled(3, set.count()), set, set.count(), set.count());
  Ids sorted = epoch.tokens;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(sorted[i], static_cast<std::int32_t>(i));
  for (std::size_t i = 0; i < sorted.size(); ++i) EXPECT_EQ(epoch.targets[i], epoch.tokens[i] + 1);
}

TEST(FillBatch, RefusesWhatDoesNotFit) {
  const SampleSet set(counting_source(100), {0, 100}, 7);
  Ids a(14), b(7), c(13);
  const SampleOrder order = SampleOrder::sequential(set.count());
  EXPECT_THROW(fill_batch(order, set, 0, a, b), ShapeError);
  EXPECT_THROW(fill_batch(order, set, 0, c, c), ShapeError);
  EXPECT_THROW(fill_batch(SampleOrder::sequential(5), set, 0, a, a), ShapeError);
}

}  // namespace
}  // namespace megalith::data
