#include "megalith/pipeline/simulate.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

using nlohmann::json;

std::vector<LoweredSchedule> lower_all(const ScheduleShape& shape, const std::vector<Schedule>& lists) {
  std::vector<LoweredSchedule> lowered;
  for (int stage = 0; stage < shape.num_stages; ++stage) lowered.push_back(lower(shape, stage, lists, {}));
  return lowered;
}

std::vector<LoweredSchedule> lower_all(const ScheduleShape& shape) {
  return lower_all(shape, compute_schedules(shape));
}

std::string failure_of(const ScheduleShape& shape, const std::vector<LoweredSchedule>& lowered) {
  try {
    simulate(shape, lowered);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "finished";
}

Costs random_costs(const ScheduleShape& shape, std::mt19937& random) {
  Costs costs;
  std::uniform_real_distribution<double> time(0.1, 3.0);
  costs.latency = time(random);
  for (int i = 0; i <= last_global_stage(shape); ++i) costs.chunks.push_back({time(random), time(random)});
  return costs;
}

TEST(Simulate, MakespansOfTheVectors) {
  for (const json& entry : schedule_entries()) {
    EXPECT_EQ(simulate(shape_of(entry)).makespan, entry.at("makespan").at("total").get<double>()) << shape_of(entry);
  }
}

TEST(Simulate, BubbleFallsWithTheNumberOfChunks) {
  for (const int pp : {2, 4, 8}) {
    for (const int chunks : {1, 2, 4}) {
      for (const int microbatches : {pp, 3 * pp, 8 * pp}) {
        const Simulation simulation = simulate({pp, chunks, microbatches, 0});
        for (const StageResult& stage : simulation.stages) {
          EXPECT_DOUBLE_EQ(stage.idle, (pp - 1) * 3.0 / chunks) << pp << " " << chunks << " " << microbatches;
          EXPECT_DOUBLE_EQ(stage.busy, 3.0 * microbatches);
        }
      }
    }
  }
}

TEST(Simulate, EveryLegalShapeFinishesWithinItsCounts) {
  for (const ScheduleShape& shape : legal_shapes(counting_to(24))) {
    const Simulation simulation = simulate(shape);
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      const StageResult& result = simulation.stages[static_cast<std::size_t>(stage)];
      ASSERT_EQ(result.peak_in_flight, peak_in_flight(shape, stage)) << shape;
      ASSERT_EQ(result.timeline.size(), 2 * static_cast<std::size_t>(total_work(shape))) << shape;
      for (const Flow flow : {Flow::activation, Flow::gradient}) {
        ASSERT_LE(result.queue_depth[flow], result.send_buffers[flow]) << shape;
      }
    }
  }
}

/// Start and end of every compute action when messages take no time, buffers are free and only data is waited for.
/// Visits the stages round and round until nothing moves.
double makespan_of_lists(const ScheduleShape& shape, const Costs& costs) {
  const std::vector<Schedule> lists = compute_schedules(shape);
  std::vector<std::size_t> next(lists.size());
  std::vector<double> clock(lists.size());
  const int last = last_global_stage(shape);
  std::vector<std::vector<double>> done(2 * static_cast<std::size_t>(last + 1));  // [direction, place][microbatch]
  const auto cell = [&](Act act, int place) -> std::vector<double>& {
    return done[static_cast<std::size_t>(act == Act::forward ? place : last + 1 + place)];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < lists.size(); ++stage) {
      while (next[stage] < lists[stage].size()) {
        const Action& action = lists[stage][next[stage]];
        const bool forward = action.act == Act::forward;
        const int place = global_stage(shape, static_cast<int>(stage), action.chunk), from = place + (forward ? -1 : 1);
        if (from >= 0 && from <= last) {
          const std::vector<double>& input = cell(action.act, from);
          if (input.size() <= static_cast<std::size_t>(action.microbatch)) break;
          clock[stage] = std::max(clock[stage], input[static_cast<std::size_t>(action.microbatch)]);
        }
        const ChunkCost& cost = costs.chunks[static_cast<std::size_t>(place)];
        clock[stage] += forward ? cost.forward : cost.backward;
        cell(action.act, place).push_back(clock[stage]);
        ++next[stage];
        moved = true;
      }
    }
  }
  return *std::max_element(clock.begin(), clock.end());
}

TEST(Simulate, BuffersAndReceivesCostNoTimeInTraining) {
  std::mt19937 random(1);
  for (const ScheduleShape& shape : legal_shapes({1, 2, 6, 13})) {
    Costs costs = random_costs(shape, random);
    for (const StageResult& stage : simulate(shape, lower_all(shape), costs).stages) {
      ASSERT_EQ(stage.send_wait, 0) << shape;  // a send never holds up compute, also with latency
    }
    costs.latency = 0;
    ASSERT_DOUBLE_EQ(simulate(shape, lower_all(shape), costs).makespan, makespan_of_lists(shape, costs)) << shape;
  }
}

TEST(Simulate, ForwardOnlyFinishesWhateverTheSpeeds) {
  std::mt19937 random(2);
  for (ScheduleShape shape : legal_shapes({1, 2, 6, 13, 24})) {
    shape.mode = ScheduleMode::forward_only;
    for (int round = 0; round < 2; ++round) ASSERT_NO_THROW(simulate(shape, random_costs(shape, random))) << shape;
    // All stages alike: the pipeline fills once and then runs without a gap, groups of at least pp permitting.
    const int last_group = shape.num_microbatches % group_size(shape);
    if (shape.num_chunks > 1 && last_group != 0 && last_group < shape.num_stages) continue;
    if (shape.num_chunks > 1 && shape.num_microbatches < shape.num_stages) continue;
    ASSERT_NEAR(simulate(shape).makespan, shape.num_microbatches + (shape.num_stages - 1.0) / shape.num_chunks, 1e-9)
        << shape;
  }
  // Groups and counts that only a forward-only pass may have.
  for (const int microbatches : {1, 2, 3, 5, 30}) {
    EXPECT_NO_THROW(simulate({4, 3, microbatches, 0, ScheduleMode::forward_only}));
    EXPECT_NO_THROW(simulate({4, 3, microbatches, 100, ScheduleMode::forward_only}));
  }
}

TEST(Simulate, LatencyDelaysEveryHop) {
  // One microbatch goes through 4 stages and back: 4 * (1 + 2) and six messages.
  EXPECT_DOUBLE_EQ(simulate({4, 1, 1, 0}, Costs{.latency = 0.25}).makespan, 12 + 6 * 0.25);
}

TEST(Simulate, UnevenStagesAreBoundByTheSlowest) {
  Costs costs;
  costs.chunks = {{1, 2}, {1, 2}, {2, 4}, {1, 2}};
  const Simulation simulation = simulate({4, 1, 16, 0}, costs);
  EXPECT_DOUBLE_EQ(simulation.stages[2].busy, 16 * 6.0);
  // Two forwards fill it and two backwards empty it; once, stage 2 waits 1 for the first gradient from stage 3.
  EXPECT_DOUBLE_EQ(simulation.makespan, 2 + 16 * 6.0 + 1 + 4);
  EXPECT_GT(simulation.stages[0].idle, simulation.stages[2].idle);
  costs.chunks.pop_back();
  EXPECT_THROW(simulate({4, 1, 16, 0}, costs), ShapeError);
}

TEST(Simulate, QueueDepthCountsSendsThatAwaitTheirReceive) {
  // A group of 16 runs ahead on the last stage: its results queue until stage 0 turns to the next chunk.
  const Simulation simulation = simulate({2, 2, 64, 16});
  EXPECT_EQ(simulation.stages[1].queue_depth[Flow::activation], 14);
  EXPECT_LE(simulation.stages[0].queue_depth[Flow::activation], 1);
  // Equal stages in 1F1B meet their receives at once.
  for (const StageResult& stage : simulate({4, 1, 16, 0}).stages) EXPECT_EQ(stage.queue_depth, PerFlow{});
  // A slow stage makes its neighbour's warm-up forwards queue.
  const Costs slow{.chunks = {{1, 1}, {8, 1}, {1, 1}, {1, 1}}};
  EXPECT_EQ(simulate({4, 1, 16, 0}, slow).stages[0].queue_depth[Flow::activation], 2);
}

// ---- what must be refused -------------------------------------------------------------------------------------------

TEST(Simulate, DeadlockNamesStageActionAndWhatIsAwaited) {
  const ScheduleShape shape{2, 1, 2, 0};
  const std::vector<Schedule> lists{
      schedule_of_order(shape, {1, -1, 1, -1}),  // waits for a gradient before it feeds stage 1 again
      schedule_of_order(shape, {1, 1, -1, -1})};
  const std::string text = failure_of(shape, lower_all(shape, lists));
  EXPECT_EQ(text,
            "[schedule] deadlock: 2 of 2 stages wait for ever\n"
            "  stage 0, action 5: wait_recv of the gradient of chunk 0, microbatch 0 from stage 1\n"
            "  stage 1, action 6: wait_recv of the activation of chunk 0, microbatch 1 from stage 0");
}

TEST(Simulate, AMessageForAnotherMicrobatchIsRefused) {
  const ScheduleShape shape{2, 2, 4, 2};
  std::vector<Schedule> lists = compute_schedules(shape);
  lists[1] = compute_schedule({2, 2, 4, 4}, 1);  // another group size on one stage
  EXPECT_EQ(
      failure_of(shape, lower_all(shape, lists)),
      "[schedule] stage 1, action 8 (post_recv of the activation of chunk 0, microbatch 2 from stage 0) meets the "
      "wrong message: stage 0, action 12 (post_send of the activation of chunk 1, microbatch 0 to stage 1)");
}

TEST(Simulate, AMissingMessageIsADeadlock) {
  const ScheduleShape shape{2, 1, 2, 0};
  std::vector<LoweredSchedule> lowered = lower_all(shape);
  lowered[0] = lower({2, 1, 1, 0}, 0);  // one microbatch less than stage 1 waits for
  EXPECT_EQ(failure_of(shape, lowered),
            "[schedule] deadlock: 1 of 2 stages wait for ever\n"
            "  stage 1, action 8: wait_recv of the activation of chunk 0, microbatch 1 from stage 0");
}

/// Sends that block until the receiver is there, receives posted only when they are waited for.
std::vector<LoweredSchedule> with_blocking_sends(std::vector<LoweredSchedule> lowered) {
  for (LoweredSchedule& stage : lowered) {
    std::vector<LoweredAction> actions;
    for (const LoweredAction& action : stage.actions) {
      if (action.act == Act::post_recv || action.act == Act::wait_send) continue;
      LoweredAction extra = action;
      if (action.act == Act::wait_recv) {
        extra.act = Act::post_recv;
        actions.push_back(extra);
      }
      actions.push_back(action);
      if (action.act == Act::post_send) {
        extra.act = Act::wait_send;
        actions.push_back(extra);
      }
    }
    stage.actions = actions;
  }
  return lowered;
}

TEST(Simulate, BlockingSendsDeadlockEveryPipelinedSchedule) {
  for (const ScheduleShape& shape : legal_shapes({8, 12})) {
    if (shape.num_stages == 1) continue;
    EXPECT_NE(failure_of(shape, with_blocking_sends(lower_all(shape))).find("deadlock"), std::string::npos) << shape;
  }
}

/// Gives a stage fewer send buffers of a flow, waiting earlier.
LoweredSchedule with_send_buffers(LoweredSchedule stage, Flow flow, int buffers) {
  std::vector<LoweredAction> actions, sent;
  std::size_t waited = 0;
  const auto buffer_of = [&](std::size_t i) { return static_cast<int>(i) % buffers; };
  const auto wait = [&] {
    LoweredAction action = sent[waited];
    action.act = Act::wait_send;
    action.buffer = buffer_of(waited++);
    actions.push_back(action);
  };
  for (LoweredAction action : stage.actions) {
    const bool mine = action.flow == flow;
    if (mine && action.act == Act::wait_send) continue;
    if (mine && (action.act == Act::forward || action.act == Act::backward) && action.buffer >= 0) {
      if (sent.size() - waited == static_cast<std::size_t>(buffers)) wait();
      action.buffer = buffer_of(sent.size());
    }
    if (mine && action.act == Act::post_send) {
      action.buffer = buffer_of(sent.size());
      sent.push_back(action);
    }
    actions.push_back(action);
  }
  while (waited < sent.size()) wait();
  stage.actions = actions;
  stage.send_buffers[flow] = buffers;
  return stage;
}

TEST(Simulate, TooFewSendBuffersDeadlockLargeGroups) {
  const ScheduleShape shape{2, 2, 64, 16};
  std::vector<LoweredSchedule> lowered = lower_all(shape);
  const int needed = lowered[1].send_buffers[Flow::activation];
  EXPECT_EQ(needed, 16);
  const LoweredSchedule original = lowered[1];
  lowered[1] = with_send_buffers(original, Flow::activation, needed);
  EXPECT_EQ(failure_of(shape, lowered), "finished");
  lowered[1] = with_send_buffers(original, Flow::activation, 2);
  EXPECT_NE(failure_of(shape, lowered).find("wait_send of the activation"), std::string::npos)
      << failure_of(shape, lowered);
}

TEST(Simulate, LargePipelines) {
  for (int pp = 9; pp <= 16; ++pp) {
    for (const int chunks : {1, 2, 3}) {
      for (const int microbatches : {pp, 2 * pp, 3 * pp + 1}) {
        const ScheduleShape shape{pp, chunks, microbatches, microbatches % pp == 0 ? pp : microbatches};
        ASSERT_NO_THROW(simulate(shape)) << shape;
      }
    }
  }
  const Simulation simulation = simulate({64, 4, 512, 0});
  EXPECT_DOUBLE_EQ(simulation.makespan, 512 * 3 + 63 * 3.0 / 4);
}

}  // namespace
}  // namespace megalith::pipeline
