#include "megalith/ops/kept_patch.h"

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace megalith::ops {
namespace {

constexpr RandomSite kSite{.seed = 0xfedcba9876543210ULL, .step = 7, .site = 0x80000001u};

TEST(KeptPatch, APlaceForEveryElement) {
  std::set<std::pair<int, int>> places;
  for (Index query = 0; query < KeptPatch::kQueries; ++query) {
    for (Index key = 0; key < KeptPatch::kKeys; ++key) places.emplace(kept_group(query, key), kept_bit(query, key));
  }
  EXPECT_EQ(places.size(), std::size_t{1024});
  EXPECT_EQ(*places.begin(), std::pair(0, 0));
  EXPECT_EQ(*places.rbegin(), std::pair(31, 31));
}

TEST(KeptPatch, BlocksOfItsOwnForEveryPatch) {
  for (const Index seq_len : {1, 16, 17, 64, 65, 200}) {
    std::set<std::uint64_t> blocks;
    std::size_t patches = 0;
    for (std::uint64_t head = 0; head < 3; ++head) {
      for (Index query = 0; query < seq_len; query += KeptPatch::kQueries) {
        for (Index key = 0; key < seq_len; key += KeptPatch::kKeys, ++patches)
          blocks.insert((head * kept_head_blocks(seq_len) + kept_patch_block(seq_len, query, key)) /
                        KeptPatch::kBlocks);
      }
    }
    EXPECT_EQ(blocks.size(), patches) << seq_len;
  }
  EXPECT_EQ(kept_head_blocks(kMaxKeptSeqLen), std::uint64_t{1} << 32);
  EXPECT_EQ(kept_head_blocks(4 * kMaxKeptSeqLen), std::uint64_t{1} << 35);
}

TEST(KeptPatch, ThresholdsAreOfSixteenBits) {
  EXPECT_EQ(attention_dropout_threshold(0.1), 6554u);
  EXPECT_EQ(attention_dropout_threshold(0.5), 32768u);
  EXPECT_EQ(attention_dropout_threshold(1e-6), 0u);
  EXPECT_EQ(attention_dropout_threshold(0.9999999), 65535u);
  EXPECT_EQ(attention_kept_scale(0.5), 2);
  EXPECT_EQ(attention_kept_scale(0.1), 65536.0 / (65536 - 6554));
}

/// The number of every element, bit by bit, against the threshold.
TEST(KeptPatch, IsKeptWhereItsNumberReachesTheThreshold) {
  for (const double probability : {0.0, 1e-4, 0.1, 0.5, 0.75, 0.9999999}) {
    for (std::uint64_t block = 0; block < 64 * KeptPatch::kGroupBlocks; block += KeptPatch::kGroupBlocks) {
      const std::uint32_t kept = kept_elements(kSite, block, attention_dropout_threshold(probability));
      std::vector<std::uint32_t> words;
      for (std::uint64_t n = 0; n < KeptPatch::kGroupBlocks; ++n) {
        for (const std::uint32_t word : kSite.block<KeptPatch::kRounds>(block + n)) words.push_back(word);
      }
      for (unsigned element = 0; element < 32; ++element) {
        std::uint32_t number = 0;
        for (unsigned k = 0; k < KeptPatch::kNumberBits; ++k) number |= (words[k] >> element & 1u) << k;
        EXPECT_EQ(kept >> element & 1u, number >= attention_dropout_threshold(probability) ? 1u : 0u)
            << probability << ", block " << block << ", element " << element;
      }
    }
  }
}

/// A known answer of Philox4x32-7 (kat_vectors of Random123).
TEST(KeptPatch, SevenRoundsOfPhilox) {
  EXPECT_EQ(philox4x32<7>({0, 0, 0, 0}, {0, 0}), (Philox4{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
}

TEST(KeptPatch, PreparedRoundsDrawTheSame) {
  for (const double probability : {1e-4, 0.1, 0.5}) {
    const KeptRounds rounds = KeptRounds::of(kSite.seed, kSite.site, probability);
    for (const std::uint32_t head : {0u, 3u, 0xffffffffu}) {
      for (std::uint32_t block = 0; block < 128; block += KeptPatch::kGroupBlocks) {
        const std::uint32_t want =
            kept_elements(kSite, (std::uint64_t{head} << 32) + block, attention_dropout_threshold(probability));
        EXPECT_EQ(rounds.group(block, head, kSite.step), want);
        const std::uint32_t half = rounds.group<0, 2>(block, head, kSite.step);
        EXPECT_EQ((rounds.group<2, 4>(block, head, kSite.step, half)), want);
      }
    }
  }
}

TEST(KeptPatch, AsManyAreDroppedAsTheThresholdSays) {
  constexpr Index kSeqLen = 512;
  constexpr double kElements = 2.0 * kSeqLen * kSeqLen;
  for (const double probability : {0.01, 0.1, 0.5}) {
    double dropped = 0;
    for (std::uint64_t head = 5; head < 7; ++head) {
      for (std::uint64_t block = 0; block < kSeqLen * kSeqLen / 32 * KeptPatch::kGroupBlocks;
           block += KeptPatch::kGroupBlocks) {
        dropped += 32 - std::popcount(kept_elements(kSite, head * kept_head_blocks(kSeqLen) + block,
                                                    attention_dropout_threshold(probability)));
      }
    }
    const double deviation = std::sqrt(probability * (1 - probability) / kElements);
    EXPECT_NEAR(dropped / kElements, probability, 4 * deviation);
  }
}

// ---- What lanes of a warp hold of products on tensor cores: sum 4 t + 2 h + e of lane l is in row l / 4 + 8 h, column
// 8 t + 2 (l % 4) + e. Each element carries its own bit: the groups of element (query, key) alone are 1 in it.

using Groups = std::array<std::uint32_t, KeptPatch::kGroups>;

/// The groups of a patch in which one element is kept.
Groups groups_of(Index query, Index key) {
  Groups groups{};
  groups[static_cast<std::size_t>(kept_group(query, key))] = 1u << kept_bit(query, key);
  return groups;
}

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

TEST(KeptPatch, LanesOfQueriesHaveTheirGroups) {
  for (Index query = 0; query < 16; ++query) {
    for (Index key = 0; key < 64; ++key) {
      const Groups groups = groups_of(query, key);
      for (Index lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 32; ++i) {
          const Index row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
          EXPECT_EQ((groups[at(lane)] & kept_bit_of_queries(i)) != 0, row == query && column == key);
        }
      }
    }
  }
}

/// Transposes 8 x 8 elements of 16 bits, of which a lane has [l / 4][2 (l % 4)] in its low half and the next.
Groups transposed(const Groups& groups) {
  Groups result{};
  for (Index row = 0; row < 8; ++row) {
    for (Index column = 0; column < 8; ++column) {
      const std::uint32_t element = groups[at(row * 4 + column / 2)] >> column % 2 * 16 & 0xffffu;
      result[at(column * 4 + row / 2)] |= element << row % 2 * 16;
    }
  }
  return result;
}

TEST(KeptPatch, LanesOfKeysTakeTheirBitsFromFourPatches) {
  for (Index query = 0; query < 64; ++query) {
    for (Index key = 0; key < 64; ++key) {
      std::array<Groups, 4> patches{};
      patches[at(query / 16)] = transposed(groups_of(query % 16, key));
      for (int sixteen = 0; sixteen < 4; ++sixteen) {  // the warp
        for (Index lane = 0; lane < 32; ++lane) {
          const std::uint32_t of_lane[4] = {patches[0][at(lane)], patches[1][at(lane)], patches[2][at(lane)],
                                            patches[3][at(lane)]};
          const std::uint32_t bits = kept_of_sixteen_keys(of_lane, sixteen);
          for (int i = 0; i < 32; ++i) {
            const Index row = sixteen * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            ASSERT_EQ((bits & kept_bit_of_keys(i)) != 0, row == key && column == query)
                << "query " << query << ", key " << key << ", lane " << lane << ", sum " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith::ops
