#include "megalith/corpus/minhash.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "megalith/base/hash.h"
#include "megalith/base/philox.h"

namespace megalith::corpus {
namespace {

TEST(Banding, RecallIsThatOfTheFormula) {
  EXPECT_NEAR((Banding{20, 5}.recall(0.7)), 0.975, 5e-4);
  EXPECT_NEAR((Banding{20, 5}.recall(0.75)), 0.996, 5e-4);
  EXPECT_NEAR((Banding{20, 5}.recall(0.5)), 0.47, 5e-4 + 0.0005);
  EXPECT_NEAR((Banding{10, 10}.recall(0.7)), 0.249, 5e-4);
  EXPECT_NEAR((Banding{14, 8}.recall(0.7)), 0.564, 6e-4);
  EXPECT_NEAR((Banding{25, 10}.recall(0.7)), 0.512, 6e-4);
}

TEST(Banding, IsChosenByRecall) {
  EXPECT_EQ(choose_banding(0.95, 0.7), (Banding{20, 5}));
  for (const double similarity : {0.05, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99})
    for (const double recall : {0.5, 0.9, 0.95, 0.99}) {
      const Banding banding = choose_banding(recall, similarity);
      ASSERT_GT(banding.bands, 0) << similarity << ' ' << recall;
      EXPECT_GE(banding.recall(similarity), recall);
      EXPECT_LE(banding.hashes(), kMaxHashes);
    }
  EXPECT_EQ(choose_banding(0.999999, 0.01).bands, 0) << "out of reach";
}

TEST(Banding, NearestKeepsTheNumberOfHashes) {
  EXPECT_EQ(nearest_banding({10, 10}, 0.95, 0.7), (Banding{20, 5}));
  EXPECT_EQ(nearest_banding({14, 8}, 0.95, 0.7), (Banding{22, 5}));
  EXPECT_EQ(nearest_banding({25, 10}, 0.95, 0.7), (Banding{35, 7}));
  EXPECT_EQ(nearest_banding({2, 1}, 0.95, 0.7), (Banding{20, 5})) << "no two hashes reach it";
}

std::vector<std::uint64_t> elements(std::uint64_t seed, std::size_t count) {
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(hash_combine(seed, i));
  return out;
}

TEST(MinHash, EveryKernelGivesTheFormula) {
  const RandomSite site{.seed = 3};
  for (const std::size_t hashes : {16, 112, 256})
    for (const std::size_t size : {1, 2, 1000}) {
      std::vector<std::uint32_t> x, a, b, want(hashes, ~0u);
      for (std::uint64_t i = 0; i < size; ++i) x.push_back(site.word(i));
      for (std::uint64_t i = 0; i < hashes; ++i) a.push_back(site.word(5000 + i) | 1), b.push_back(site.word(9000 + i));
      for (std::size_t i = 0; i < hashes; ++i)
        for (const std::uint32_t element : x) want[i] = std::min(want[i], a[i] * element + b[i]);
      for (const NamedKernel& kernel : minhash_kernels()) {
        std::vector<std::uint32_t> least(hashes, 7);
        kernel.kernel({x.data(), x.size(), a.data(), b.data(), least.data(), hashes});
        EXPECT_EQ(least, want) << kernel.name << ' ' << hashes << ' ' << size;
      }
    }
}

// The share of equal hashes estimates the Jaccard similarity without bias, and hashes are as independent as drawn ones:
// over 400 pairs of sets the mean and the variance of the estimate are those of the binomial distribution.
TEST(MinHash, EstimatesTheJaccardSimilarity) {
  constexpr int kPairs = 400, kShared = 140, kEither = 200;
  const double similarity = static_cast<double>(kShared) / kEither;
  MinHash first({25, 10}, 1), second({25, 10}, 1);
  double sum = 0, squares = 0;
  std::vector<std::uint64_t> bands(25);
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto all = elements(static_cast<std::uint64_t>(pair), kEither);
    const std::vector<std::uint64_t> a(all.begin(), all.begin() + 170);
    std::vector<std::uint64_t> b(all.begin(), all.begin() + kShared);
    b.insert(b.end(), all.begin() + 170, all.end());
    first.bands(a, bands);
    second.bands(b, bands);
    int equal = 0;
    for (std::size_t i = 0; i < 250; ++i) equal += first.signature()[i] == second.signature()[i];
    const double estimate = equal / 250.0;
    sum += estimate;
    squares += (estimate - similarity) * (estimate - similarity);
  }
  const double variance = similarity * (1 - similarity) / 250;
  EXPECT_NEAR(sum / kPairs, similarity, 4 * std::sqrt(variance / kPairs));
  EXPECT_NEAR(squares / kPairs / variance, 1.0, 4 * std::sqrt(2.0 / kPairs));
}

// A band without one of its rows finds every pair that the whole band finds, and others, which cost comparisons.
TEST(MinHash, SetsShareABandWhereTheyAgreeInAllItsRows) {
  constexpr Banding kBanding{20, 5};
  MinHash first(kBanding, 1), second(kBanding, 1);
  std::vector<std::uint64_t> a(20), b(20);
  int candidates = 0, agreeing = 0, all_but_one = 0;
  for (std::uint64_t pair = 0; pair < 200; ++pair) {
    const auto all = elements(pair, 200);  // of which each set lacks 30: a similarity of 0.7
    first.bands(std::span(all).first(170), a);
    second.bands(std::span(all).last(170), b);
    for (std::size_t band = 0; band < 20; ++band) {
      int equal = 0;
      for (std::size_t row = 0; row < 5; ++row)
        equal += first.signature()[band * 5 + row] == second.signature()[band * 5 + row];
      candidates += a[band] == b[band];
      agreeing += equal == 5;
      all_but_one += equal == 4;
      EXPECT_EQ(a[band] == b[band], equal == 5);
    }
  }
  EXPECT_EQ(candidates, agreeing);
  EXPECT_NEAR(candidates / 4000.0, std::pow(0.7, 5), 0.03) << "4 standard deviations";
  EXPECT_GT(all_but_one, 1000);
}

TEST(MinHash, DependsOnTheSetAndTheSeedOnly) {
  auto set = elements(1, 50);
  std::vector<std::uint64_t> bands(20), other(20);
  MinHash hash({20, 5}, 1);
  hash.bands(set, bands);
  std::reverse(set.begin(), set.end());
  set.push_back(set.front());
  hash.bands(set, other);
  EXPECT_EQ(bands, other);
  MinHash({20, 5}, 2).bands(set, other);
  EXPECT_NE(bands, other);
}

}  // namespace
}  // namespace megalith::corpus
