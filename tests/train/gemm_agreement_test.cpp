#include "megalith/train/gemm_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/comm/threads/thread_world.h"

#include "tests/ops/gemms.h"

// Ranks of other pipeline stages meet other products; the fake library of rank r finds algorithm 2 + r the fastest.
namespace megalith::train {
namespace {

using support::gemm_table;
using support::kA100;
using support::kH200;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Rank {
  ops::GemmChoices choices;
  ops::GemmTable used;
  std::vector<Index> timed;
};

/// What every rank comes to, which has met the products of these rows on this platform.
std::vector<Rank> agree(const std::vector<std::pair<ops::GemmPlatform, std::vector<Index>>>& ranks,
                        const std::vector<ops::KnownGemms>& known = {}) {
  std::vector<Rank> out(ranks.size());
  comm::run_ranks(static_cast<int>(ranks.size()), [&](comm::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    support::FakeGemmLibrary library(ranks[rank].first, ranks[rank].second, 2 + world.rank());
    const std::vector<ops::KnownGemms> none;
    out[rank].choices = agree_on_gemms(world, library, world.rank() == 0 ? known : none, {});
    out[rank].used = library.current();
    out[rank].timed = library.timed;
  });
  return out;
}

TEST(GemmAgreement, RankZeroChoosesForTheProductsOfAll) {
  const std::vector<Rank> ranks = agree({{kH200, {10, 20}}, {kH200, {20, 30}}, {kH200, {}}, {kH200, {40}}});
  const ops::GemmTable want = gemm_table(kH200, {{10, 2}, {20, 2}, {30, 2}, {40, 2}});
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.choices.table, want);
    EXPECT_TRUE(rank.choices.warnings.empty());
  }
  EXPECT_THAT(ranks[0].timed, ElementsAre(10, 20, 30, 40));
  EXPECT_TRUE(ranks[1].timed.empty() && ranks[2].timed.empty() && ranks[3].timed.empty());
  EXPECT_EQ(ranks[1].used, gemm_table(kH200, {{20, 2}, {30, 2}}));
  EXPECT_TRUE(ranks[2].used.empty());
  EXPECT_EQ(ranks[3].used, gemm_table(kH200, {{40, 2}}));
}

TEST(GemmAgreement, KnownTablesAreRankZerosWord) {
  const std::vector<Rank> ranks =
      agree({{kH200, {10}}, {kH200, {20, 30}}}, {{"given", gemm_table(kH200, {{10, 8}, {20, 9}, {99, 9}})}});
  for (const Rank& rank : ranks) EXPECT_EQ(rank.choices.table, gemm_table(kH200, {{10, 8}, {20, 9}, {30, 2}}));
  EXPECT_EQ(ranks[0].choices.timed, gemm_table(kH200, {{30, 2}}));
  EXPECT_EQ(ranks[1].used, gemm_table(kH200, {{20, 9}, {30, 2}}));
}

TEST(GemmAgreement, ARerunGivenTheTableUsesTheSameAlgorithms) {
  const std::vector<std::pair<ops::GemmPlatform, std::vector<Index>>> job = {{kH200, {10}}, {kH200, {20}}};
  const ops::GemmTable table = agree(job)[1].choices.table;
  const std::vector<Rank> again = agree(job, {{"OUT/gemm_table.json", table}});
  for (const Rank& rank : again) {
    EXPECT_EQ(rank.choices.table, table);
    EXPECT_TRUE(rank.timed.empty());
  }
}

TEST(GemmAgreement, RanksOnOtherGpusChooseForThemselves) {
  const std::vector<Rank> ranks =
      agree({{kH200, {10}}, {kH200, {20}}, {kA100, {10, 30}}}, {{"cache", gemm_table(kH200, {{10, 8}})}});
  EXPECT_EQ(ranks[0].used, gemm_table(kH200, {{10, 8}}));
  EXPECT_EQ(ranks[1].used, gemm_table(kH200, {{20, 3}}));
  EXPECT_EQ(ranks[2].used, gemm_table(kA100, {{10, 4}, {30, 4}}));
  ASSERT_EQ(ranks[0].choices.warnings.size(), 1u);
  EXPECT_THAT(ranks[0].choices.warnings[0],
              HasSubstr("rank 0 computes on NVIDIA H200 (compute 9.0, cuBLASLt 13.1.0), rank 2 on NVIDIA A100"));
}

TEST(GemmAgreement, OneRankNeedsNobody) {
  const std::vector<Rank> ranks = agree({{kH200, {10, 20}}});
  EXPECT_EQ(ranks[0].used, gemm_table(kH200, {{10, 2}, {20, 2}}));
}

}  // namespace
}  // namespace megalith::train
