// Slots and buffers of steps of different numbers of microbatches on one stage.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/pipeline/lowering.h"

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

struct Room {
  std::vector<int> slots;
  PerFlow receive, send;
  bool operator==(const Room&) const = default;
};

Room room_of(const LoweredSchedule& schedule) {
  return {schedule.num_slots, schedule.receive_buffers, schedule.send_buffers};
}

bool has_room_for(const Room& room, const Room& other) {
  const auto fits = [](int has, int needs) { return has >= needs; };
  bool all = std::ranges::equal(room.slots, other.slots, fits);
  for (const Flow flow : {Flow::activation, Flow::gradient})
    all = all && fits(room.receive[flow], other.receive[flow]) && fits(room.send[flow], other.send[flow]);
  return all;
}

/// Calls use(shape, stage, policy) for shapes of one microbatch that differ in all else.
template <class Use>
void for_each_stage(const std::vector<int>& chunk_counts, Use&& use) {
  for (int pp = 1; pp <= 4; ++pp) {
    for (const int chunks : chunk_counts) {
      if (pp == 1 && chunks > 1) continue;
      for (int group = pp; group <= (chunks == 1 ? pp : 6); ++group) {
        for (int stage = 0; stage < pp; ++stage) {
          for (const SlotPolicy policy : {SlotPolicy::per_chunk, SlotPolicy::shared})
            use(ScheduleShape{pp, chunks, 1, group}, stage, policy);
        }
      }
    }
  }
}

Room room_for(ScheduleShape shape, int microbatches, int stage, SlotPolicy policy) {
  shape.num_microbatches = microbatches;
  return room_of(lower(shape, stage, {.slots = policy}));
}

TEST(Room, WithOneChunkMoreMicrobatchesNeverNeedLess) {
  for_each_stage({1}, [](const ScheduleShape& shape, int stage, SlotPolicy policy) {
    for (int count = 2; count <= 20; ++count) {
      EXPECT_TRUE(has_room_for(room_for(shape, count, stage, policy), room_for(shape, count - 1, stage, policy)))
          << shape << ", stage " << stage << ", " << count;
    }
  });
}

// Stage::smaller_steps() looks at no others.
TEST(Room, FromTwoGroupsOnOneMoreGroupNeedsAsMuch) {
  int compared = 0;
  for_each_stage({2, 3, 4}, [&](const ScheduleShape& shape, int stage, SlotPolicy policy) {
    const int group = shape.group_size;
    for (int count = 2 * group; count < 3 * group; ++count) {
      if (!is_legal(shape.num_stages, shape.num_chunks, count, group)) continue;
      const Room room = room_for(shape, count, stage, policy);
      for (const int more : {group, 2 * group})
        EXPECT_EQ(room_for(shape, count + more, stage, policy), room)
            << shape << ", stage " << stage << ", " << count << " and " << count + more;
      ++compared;
    }
  });
  EXPECT_GT(compared, 500);
}

TEST(Room, IsThatOfBothSchedulesAfterOneWasWidened) {
  for (const int stage : {0, 1}) {  // the first needs more slots for fewer microbatches, the last one more buffers
    const int few = stage == 0 ? 9 : 7;
    const ScheduleShape large{2, 2, 2 * few, 5}, small{2, 2, few, 5};
    LoweredSchedule schedule = lower(large, stage);
    const LoweredSchedule other = lower(small, stage);
    EXPECT_FALSE(has_room_for(room_of(schedule), room_of(other))) << "else this shows nothing";
    const std::vector<LoweredAction> actions = schedule.actions;
    widen(schedule, other);
    EXPECT_TRUE(has_room_for(room_of(schedule), room_of(other)));
    EXPECT_TRUE(has_room_for(room_of(schedule), room_of(lower(large, stage))));
    EXPECT_EQ(schedule.actions, actions);
  }
  LoweredSchedule shared = lower({2, 2, 4, 0}, 0, {.slots = SlotPolicy::shared});
  EXPECT_THROW(widen(shared, lower({2, 2, 2, 0}, 0)), InternalError);
}

}  // namespace
}  // namespace megalith::pipeline
