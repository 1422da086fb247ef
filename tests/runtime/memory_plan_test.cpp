#include "megalith/runtime/memory_plan.h"

#include <array>
#include <random>

#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"

namespace megalith {
namespace {

Tensor planned(Recording& recording, Index bytes) {
  return {nullptr, {bytes}, DType::u8, recording.add_tensor(bytes, -1)};
}

TEST(MemoryPlan, TensorsThatNeverMeetShareBytes) {
  Recording recording;
  recording.begin_phase();
  const Tensor a = planned(recording, 1000);
  recording.add_op("make a", {}, {a});
  const Tensor b = planned(recording, 1000);
  recording.add_op("a to b", {a}, {b});
  const Tensor c = planned(recording, 1000);
  recording.add_op("b to c", {b}, {c});
  const MemoryPlan plan = make_plan(recording);
  EXPECT_EQ(plan.saved_bytes, 0);
  EXPECT_EQ(plan.scratch_bytes, 2048);  // c takes the place of a
  EXPECT_EQ(plan.phases[0].tensors[0].offset, plan.phases[0].tensors[2].offset);
}

TEST(MemoryPlan, SaysWhatTensorsHoldWhenTheyHoldMost) {
  Recording recording;
  recording.begin_phase();
  const Tensor a = planned(recording, 3 * kAlignment);
  recording.add_op("a", {}, {a});
  const Tensor b = planned(recording, 2 * kAlignment);  // after a
  recording.add_op("b", {a}, {b});
  // One of these has room where a was, the other only after b.
  const Tensor c = planned(recording, 2 * kAlignment), d = planned(recording, 2 * kAlignment);
  recording.add_op("c and d", {b}, {c, d});
  recording.add_op("the end", {b}, {});
  const MemoryPlan plan = make_plan(recording);
  EXPECT_EQ(plan.scratch_bytes, 7 * kAlignment);
  EXPECT_EQ(plan.alive_bytes, 6 * kAlignment);
}

TEST(MemoryPlan, AnOpsScratchIsApartFromWhatItReadsAndWritesAndFreeAfterIt) {
  Recording recording;
  recording.begin_phase();
  const Tensor a = planned(recording, kAlignment), b = planned(recording, kAlignment);
  recording.add_op("a", {}, {a});
  const Tensor scratch = planned(recording, kAlignment);
  recording.add_op("b", {a}, {b}, scratch);
  const Tensor c = planned(recording, kAlignment);
  recording.add_op("c", {a, b}, {c});
  const MemoryPlan plan = make_plan(recording);
  EXPECT_EQ(plan.scratch_bytes, 3 * kAlignment);
  EXPECT_EQ(plan.phases[0].tensors[2].offset, plan.phases[0].tensors[3].offset);
  EXPECT_STREQ(plan.phases[0].tensors[2].maker, "b");
}

TEST(MemoryPlan, WhatALaterPhaseReadsIsSaved) {
  Recording recording;
  recording.begin_phase();
  const Tensor kept = planned(recording, 100), gone = planned(recording, 100);
  recording.add_op("forward", {}, {kept, gone});
  recording.begin_phase();
  const Tensor view = kept.rows(0, 10);  // a view counts as its tensor
  recording.add_op("backward", {view}, {});
  const MemoryPlan plan = make_plan(recording);
  EXPECT_EQ(plan.phases[0].tensors[0].region, Region::saved);
  EXPECT_EQ(plan.phases[0].tensors[1].region, Region::scratch);
  EXPECT_EQ(plan.saved_bytes, kAlignment);
}

TEST(MemoryPlan, OverlapIsFound) {
  MemoryPlan plan;
  plan.phases.resize(1);
  plan.phases[0].tensors = {{Region::scratch, 0, 100, 0, 2, "a"}, {Region::scratch, 50, 100, 2, 3, "b"}};
  EXPECT_THROW(check_plan(plan), InternalError);
  plan.phases[0].tensors[1].first = 3;  // alive later: may share
  EXPECT_NO_THROW(check_plan(plan));
  plan.phases[0].tensors[0].region = plan.phases[0].tensors[1].region = Region::saved;
  EXPECT_THROW(check_plan(plan), InternalError);  // saved tensors never share
}

TEST(MemoryPlan, OverlapIsFoundWhereAnyTwoOverlap) {
  std::mt19937 random(7);
  const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    MemoryPlan plan;
    plan.phases.resize(1);
    std::vector<Allocation>& tensors = plan.phases[0].tensors;
    for (int i = 0; i < 6; ++i) {
      const int first = below(12);
      tensors.push_back({Region::scratch, below(40) * 10, below(5) * 10, first, first + below(3), "a"});
    }
    bool overlap = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Allocation &a = tensors[i], &b = tensors[j];
        const bool share = a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
        overlap = overlap || (share && a.first <= b.last && b.first <= a.last);
      }
    }
    if (!overlap) {
      EXPECT_NO_THROW(check_plan(plan));
      continue;
    }
    EXPECT_THROW(check_plan(plan), InternalError);
    ++refused;
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 1900);
}

// As of 65,535 layers. Quadratic work would take minutes.
TEST(MemoryPlan, ALongPassIsPlannedInSeconds) {
  Recording recording;
  recording.begin_phase();
  Tensor stream = planned(recording, 100);
  const Tensor whole = planned(recording, 10);  // alive all along
  recording.add_op("first", {}, {stream, whole});
  for (int op = 0; op < 400'000; ++op) {
    const Tensor next = planned(recording, 100 + op % 7);
    recording.add_op("op", {stream}, {next});
    stream = next;
  }
  recording.add_op("last", {stream, whole}, {});
  const double start = monotonic_s();
  const MemoryPlan plan = make_plan(recording);
  EXPECT_LT(monotonic_s() - start, 20);
  EXPECT_EQ(plan.scratch_bytes, 4 * kAlignment);
}

TEST(MemoryPlan, RandomRecordingsNeverOverlap) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Recording recording;
    std::vector<Tensor> tensors;
    for (int phase = 0; phase < 2; ++phase) {
      recording.begin_phase();
      for (int op = 0; op < 20; ++op) {
        tensors.push_back(planned(recording, static_cast<Index>(random() % 5000)));
        recording.add_op("op", {tensors[random() % tensors.size()]}, {tensors.back()});
      }
    }
    EXPECT_NO_THROW(make_plan(recording)) << "round " << round;  // make_plan checks itself
  }
}

}  // namespace
}  // namespace megalith
