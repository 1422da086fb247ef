#include "megalith/grid/parallel_state.h"

#include <gtest/gtest.h>

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

using enum GroupKind;

ParallelState state_of(const ParallelSizes& sizes, int rank) {
  ParallelState state;
  state.initialize(resolve(sizes), rank);
  return state;
}

const ParallelSizes kSixteen{.world_size = 16, .tp = 2, .pp = 4};

TEST(ParallelState, LivesFromInitializeToDestroy) {
  const std::string unused = "E_NOT_INITIALIZED: the parallel state is used before initialize() or after destroy()";
  ParallelState state;
  EXPECT_FALSE(state.initialized());
  EXPECT_EQ(config_error([&] { state.ranks(tp); }), unused);
  EXPECT_EQ(config_error([&] { state.is_first_stage(); }), unused);
  EXPECT_EQ(config_error([&] { state.vpp_size(); }), unused);
  EXPECT_EQ(config_error([&] { state.override_size(tp, 2); }), unused);
  EXPECT_EQ(config_error([&] { state.destroy(); }), unused);

  state.initialize(resolve(kSixteen), 6);
  EXPECT_TRUE(state.initialized());
  EXPECT_EQ(config_error([&] { state.initialize(resolve(kSixteen), 6); }),
            "E_ALREADY_INITIALIZED: the parallel state of rank 6 exists already; destroy() it first");

  state.override_rank(tp, 1);
  state.destroy();
  EXPECT_EQ(config_error([&] { state.rank(tp); }), unused);
  state.initialize(resolve(kSixteen), 6);
  EXPECT_EQ(state.rank(tp), 0);  // the override is gone
  EXPECT_EQ(state.global_rank(), 6);
  EXPECT_EQ(state.world_size(), 16);
}

TEST(ParallelState, ARankOutsideTheWorldLeavesItUninitialized) {
  ParallelState state;
  EXPECT_EQ(config_error([&] { state.initialize(resolve(kSixteen), 16); }), "[grid] rank = 16: must be in 0..15");
  EXPECT_FALSE(state.initialized());
}

TEST(ParallelState, NoMemberIsNotTheSameAsNotInitialized) {
  const ParallelState middle = state_of(kSixteen, 6);
  EXPECT_EQ(config_error([&] { middle.ranks(embd); }), "E_NOT_MEMBER: rank 6 is in no embd group");
  EXPECT_EQ(config_error([&] { middle.size(pos_embd); }), "E_NOT_MEMBER: rank 6 is in no pos-embd group");
  EXPECT_EQ(config_error([&] { middle.rank(embd); }), "E_NOT_MEMBER: rank 6 is in no embd group");
  EXPECT_EQ(config_error([&] { middle.src_rank(embd); }), "E_NOT_MEMBER: rank 6 is in no embd group");
  EXPECT_FALSE(middle.is_member(embd));
  EXPECT_EQ(middle.embedding_ranks(), (std::vector<int>{2, 14}));  // known all the same
  EXPECT_EQ(middle.position_embedding_ranks(), (std::vector<int>{2}));
}

// rank mod (n/d) is a shortcut for the data group's first rank that is often wrong.
TEST(ParallelState, SourceRanksComeFromTheMembers) {
  int wrong = 0;
  for (int rank = 0; rank < 16; ++rank) {
    const ParallelState state = state_of(kSixteen, rank);
    EXPECT_EQ(state.src_rank(dp), state.ranks(dp).front());
    wrong += state.src_rank(dp) != rank % (16 / state.size(dp)) ? 1 : 0;
  }
  EXPECT_EQ(state_of(kSixteen, 6).src_rank(dp), 4);
  EXPECT_EQ(wrong, 12);
}

TEST(ParallelState, OverridesChangeNumbersAndNotMembers) {
  ParallelState state = state_of(kSixteen, 6);
  state.override_size(pp, 8);
  state.override_rank(pp, 7);
  EXPECT_EQ(state.size(pp), 8);
  EXPECT_EQ(state.rank(pp), 7);
  EXPECT_TRUE(state.is_last_stage());
  EXPECT_EQ(state.ranks(pp), (std::vector<int>{2, 6, 10, 14}));
  EXPECT_EQ(state.pp_next(), 10);
  EXPECT_EQ(state.pp_prev(), 2);
  EXPECT_EQ(state.size(tp), 2);  // another kind is untouched
  state.override_size(pp, std::nullopt);
  state.override_rank(pp, std::nullopt);
  EXPECT_EQ(state.size(pp), 4);
  EXPECT_EQ(state.rank(pp), 1);
  EXPECT_FALSE(state.is_last_stage());

  state.override_size(embd, 2);  // also of a group the rank is not in
  EXPECT_EQ(state.size(embd), 2);
  EXPECT_EQ(config_error([&] { state.override_size(tp, 0); }),
            "E_SIZE_NOT_POSITIVE: size override of tp=0: every size must be at least 1");
  EXPECT_EQ(config_error([&] { state.override_rank(tp, -1); }), "[grid] rank override of tp = -1: must be at least 0");
}

TEST(ParallelState, VirtualStages) {
  ParallelSizes sizes = kSixteen;
  sizes.vpp = 3;
  ParallelState first = state_of(sizes, 0);
  ParallelState last = state_of(sizes, 15);
  EXPECT_EQ(first.vpp_size(), 3);
  EXPECT_EQ(first.vpp_rank(), 0);
  EXPECT_TRUE(first.is_first_stage());
  EXPECT_FALSE(last.is_last_stage());
  EXPECT_TRUE(last.is_last_stage(VirtualStage::ignored));
  EXPECT_FALSE(last.in_embedding_group());
  EXPECT_TRUE(last.in_embedding_group(VirtualStage::ignored));

  first.set_vpp_rank(1);
  last.set_vpp_rank(2);
  EXPECT_EQ(last.vpp_rank(), 2);
  EXPECT_FALSE(first.is_first_stage());
  EXPECT_TRUE(first.is_first_stage(VirtualStage::ignored));
  EXPECT_FALSE(first.in_embedding_group());
  EXPECT_TRUE(last.is_last_stage());
  EXPECT_TRUE(last.in_embedding_group());
  EXPECT_EQ(config_error([&] { last.set_vpp_rank(3); }), "[grid] vpp rank = 3: must be in 0..2");
  EXPECT_EQ(config_error([&] { last.set_vpp_rank(-1); }), "[grid] vpp rank = -1: must be in 0..2");

  ParallelState plain = state_of(kSixteen, 0);
  EXPECT_EQ(plain.vpp_size(), std::nullopt);
  EXPECT_EQ(plain.vpp_rank(), std::nullopt);
  EXPECT_EQ(config_error([&] { plain.set_vpp_rank(0); }),
            "[grid] vpp rank = 0: this pipeline has no virtual stages (vpp is unset)");
}

TEST(ParallelState, SplitStagesAlwaysHoldTheEmbedding) {
  ParallelSizes sizes = kSixteen;
  sizes.vpp = 2;
  sizes.split_rank = 2;
  ParallelState split = state_of(sizes, 9);  // stage 2
  EXPECT_TRUE(split.in_embedding_group());
  EXPECT_TRUE(split.in_position_embedding_group());
  split.set_vpp_rank(1);
  EXPECT_TRUE(split.in_embedding_group());
  EXPECT_EQ(split.split_rank(), 2);
  EXPECT_TRUE(split.stage_before_split(1));
  EXPECT_FALSE(split.stage_before_split());
  EXPECT_TRUE(split.stage_after_split());
  EXPECT_FALSE(split.stage_after_split(1));
  EXPECT_FALSE(split.stage_at_split());
  EXPECT_TRUE(state_of(sizes, 5).stage_at_split());  // stage 1 sends to the decoder
}

TEST(ParallelState, WithoutASplitAStageIsBeforeAndAfter) {
  for (const ParallelSizes& sizes : {kSixteen, ParallelSizes{.world_size = 4}}) {
    const ParallelState state = state_of(sizes, 3);
    EXPECT_TRUE(state.stage_before_split());
    EXPECT_TRUE(state.stage_after_split());
    EXPECT_TRUE(state.stage_at_split());
    EXPECT_EQ(state.split_rank(), std::nullopt);
  }
}

TEST(ParallelState, OneStageIsFirstLastAndItsOwnNeighbour) {
  const ParallelState state = state_of({.world_size = 4, .tp = 2}, 3);
  EXPECT_TRUE(state.is_first_stage());
  EXPECT_TRUE(state.is_last_stage());
  EXPECT_TRUE(state.in_embedding_group());
  EXPECT_EQ(state.pp_next(), 3);
  EXPECT_EQ(state.pp_prev(), 3);
}

// Two ranks of one process do not share anything.
TEST(ParallelState, StatesAreIndependent) {
  ParallelState a = state_of(kSixteen, 0);
  const ParallelState b = state_of({.world_size = 4, .tp = 4}, 1);
  a.override_size(tp, 7);
  EXPECT_EQ(a.size(tp), 7);
  EXPECT_EQ(b.size(tp), 4);
  EXPECT_EQ(b.rank(tp), 1);
}

}  // namespace
}  // namespace megalith::grid
