#include "megalith/pipeline/lowering.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/pipeline/liveness.h"

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

constexpr Flow kFlows[] = {Flow::activation, Flow::gradient};

Schedule compute_part(const LoweredSchedule& lowered) {
  Schedule schedule;
  for (const LoweredAction& action : lowered.actions) {
    if (action.act == Act::forward || action.act == Act::backward) {
      schedule.push_back({action.act, action.chunk, action.microbatch});
    }
  }
  return schedule;
}

std::vector<LoweredAction> only(const LoweredSchedule& lowered, Act act, Flow flow) {
  std::vector<LoweredAction> found;
  for (const LoweredAction& action : lowered.actions) {
    if (action.act == act && action.flow == flow) found.push_back(action);
  }
  return found;
}

std::vector<std::string> lines(const LoweredSchedule& lowered) {
  std::vector<std::string> text;
  for (const LoweredAction& action : lowered.actions) text.push_back(describe(action));
  return text;
}

TEST(Lowering, OneStageNeedsNoCommunication) {
  const std::vector<std::string> wanted{"set_step_state of chunk 0, microbatch 0",
                                        "forward of chunk 0, microbatch 0",
                                        "backward of chunk 0, microbatch 0",
                                        "set_step_state of chunk 0, microbatch 1",
                                        "forward of chunk 0, microbatch 1",
                                        "backward of chunk 0, microbatch 1",
                                        "reduce_grads"};
  const LoweredSchedule lowered = lower({1, 1, 2, 0}, 0);
  EXPECT_EQ(lines(lowered), wanted);
  EXPECT_EQ(lowered.num_slots, std::vector<int>{1});
  EXPECT_EQ(lowered.actions[1],
            (LoweredAction{.act = Act::forward, .flow = Flow::activation, .chunk = 0, .microbatch = 0, .slot = 0}));
}

TEST(Lowering, LastStageOfTwoAsAList) {
  const std::vector<std::string> wanted{"post_recv of the activation of chunk 0, microbatch 0 from stage 0",
                                        "set_step_state of chunk 0, microbatch 0",
                                        "post_recv of the activation of chunk 0, microbatch 1 from stage 0",
                                        "wait_recv of the activation of chunk 0, microbatch 0 from stage 0",
                                        "forward of chunk 0, microbatch 0",
                                        "backward of chunk 0, microbatch 0",
                                        "post_send of the gradient of chunk 0, microbatch 0 to stage 0",
                                        "set_step_state of chunk 0, microbatch 1",
                                        "wait_recv of the activation of chunk 0, microbatch 1 from stage 0",
                                        "forward of chunk 0, microbatch 1",
                                        "backward of chunk 0, microbatch 1",
                                        "post_send of the gradient of chunk 0, microbatch 1 to stage 0",
                                        "reduce_grads",
                                        "wait_send of the gradient of chunk 0, microbatch 0 to stage 0",
                                        "wait_send of the gradient of chunk 0, microbatch 1 to stage 0"};
  const LoweredSchedule lowered = lower({2, 1, 2, 0}, 1);
  EXPECT_EQ(lines(lowered), wanted);
  const LoweredAction& backward = lowered.actions.at(10);
  EXPECT_EQ(backward, (LoweredAction{.act = Act::backward,
                                     .flow = Flow::gradient,
                                     .chunk = 0,
                                     .microbatch = 1,
                                     .slot = 0,
                                     .buffer = 1,
                                     .input_buffer = 1,
                                     .turn = {.is_first = false, .is_last = true}}));
}

TEST(Lowering, AddsToTheComputeListAndNeverReordersIt) {
  for (ScheduleShape shape : legal_shapes({1, 5, 12})) {
    for (const ScheduleMode mode : {ScheduleMode::training, ScheduleMode::forward_only}) {
      shape.mode = mode;
      for (int stage = 0; stage < shape.num_stages; ++stage) {
        ASSERT_EQ(compute_part(lower(shape, stage)), compute_schedule(shape, stage)) << shape << " stage " << stage;
      }
    }
  }
}

/// The rules of receives and sends, for one flow of a stage.
void expect_channel_rules(const LoweredSchedule& lowered, Flow flow) {
  int posted = 0, received = 0, sent = 0, send_waits = 0;
  for (const LoweredAction& action : lowered.actions) {
    if (action.flow != flow) continue;
    if (action.act == Act::post_recv) ++posted;
    if (action.act == Act::wait_recv) ++received;
    if (action.act == Act::post_send) ++sent;
    if (action.act == Act::wait_send) ++send_waits;
    ASSERT_LE(send_waits, sent);
    ASSERT_LE(posted, received + (action.act == Act::post_recv ? 2 : 1));  // one use ahead, no more
    if (action.act == Act::wait_recv) {
      const int uses = static_cast<int>(only(lowered, Act::post_recv, flow).size());
      ASSERT_EQ(posted, std::min(received + 1, uses));  // and no less
    }
  }
  ASSERT_EQ(received, posted);
  ASSERT_EQ(send_waits, sent);
}

TEST(Lowering, ReceivesArePostedOneUseAheadAndSendsAreAllWaitedFor) {
  for (ScheduleShape shape : legal_shapes({2, 9})) {
    for (const ScheduleMode mode : {ScheduleMode::training, ScheduleMode::forward_only}) {
      shape.mode = mode;
      for (int stage = 0; stage < shape.num_stages; ++stage) {
        SCOPED_TRACE(str(shape, " stage ", stage));
        const LoweredSchedule lowered = lower(shape, stage);
        for (const Flow flow : kFlows) ASSERT_NO_FATAL_FAILURE(expect_channel_rules(lowered, flow));
      }
    }
  }
}

TEST(Lowering, FirstReceivesAreTheFirstActions) {
  const LoweredSchedule lowered = lower({4, 2, 8, 0}, 2);
  EXPECT_EQ(lowered.actions[0].act, Act::post_recv);
  EXPECT_EQ(lowered.actions[0].flow, Flow::activation);
  EXPECT_EQ(lowered.actions[1].act, Act::post_recv);
  EXPECT_EQ(lowered.actions[1].flow, Flow::gradient);
}

TEST(Lowering, EndsOfThePipelineDoNotCommunicateOutwards) {
  const ScheduleShape shape{4, 2, 8, 0};
  const LoweredSchedule first = lower(shape, 0), last = lower(shape, 3);
  // Stage 0 receives activations for chunk 1 only, from the last stage, which sends those of chunk 0 only.
  EXPECT_EQ(only(first, Act::post_recv, Flow::activation).size(), 8u);
  for (const LoweredAction& action : only(first, Act::post_recv, Flow::activation)) {
    EXPECT_EQ(action.chunk, 1);
    EXPECT_EQ(action.peer, 3);
  }
  EXPECT_EQ(only(last, Act::post_send, Flow::activation).size(), 8u);
  for (const LoweredAction& action : only(last, Act::post_send, Flow::activation)) {
    EXPECT_EQ(action.chunk, 0);
    EXPECT_EQ(action.peer, 0);
  }
  for (const LoweredAction& action : only(first, Act::post_send, Flow::gradient)) EXPECT_EQ(action.chunk, 1);
  for (const LoweredAction& action : only(last, Act::post_recv, Flow::gradient)) EXPECT_EQ(action.chunk, 0);
}

TEST(Lowering, GradientsAreReducedOnceAfterTheLastBackward) {
  for (const ScheduleShape& shape : legal_shapes({1, 7})) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      const std::vector<LoweredAction> actions = lower(shape, stage).actions;
      std::size_t last_backward = 0, reduce = 0;
      int reductions = 0;
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].act == Act::backward) last_backward = i;
        if (actions[i].act != Act::reduce_grads) continue;
        reduce = i;
        ++reductions;
      }
      EXPECT_EQ(reductions, 1) << shape;
      EXPECT_GT(reduce, last_backward) << shape;
    }
  }
  for (const LoweredAction& action : lower({4, 1, 8, 0, ScheduleMode::forward_only}, 1).actions) {
    EXPECT_NE(action.act, Act::reduce_grads);
  }
}

TEST(Lowering, GradientsBeginWithAChunksFirstBackwardAndGoWithItsLast) {
  for (const ScheduleShape& shape : legal_shapes({1, 7})) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      std::vector<std::vector<BackwardTurn>> turns(static_cast<std::size_t>(shape.num_chunks));
      for (const LoweredAction& action : lower(shape, stage).actions) {
        if (action.act == Act::backward)
          turns[static_cast<std::size_t>(action.chunk)].push_back(action.turn);
        else
          EXPECT_EQ(action.turn, BackwardTurn{});
      }
      std::vector<BackwardTurn> wanted(static_cast<std::size_t>(shape.num_microbatches));
      wanted.front().is_first = wanted.back().is_last = true;
      for (const std::vector<BackwardTurn>& of_chunk : turns)
        EXPECT_EQ(of_chunk, wanted) << shape << " stage " << stage;
    }
  }
}

TEST(Lowering, ParametersAreGatheredOnceAChunkBeforeTheFirstComputeAction) {
  const LoweringOptions gathering{.gather = ParamGather::every_step};
  for (ScheduleShape shape : legal_shapes({1, 7})) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      LoweredSchedule lowered = lower(shape, stage, gathering);
      check_liveness(shape, stage, lowered);
      std::vector<int> chunks;
      for (const LoweredAction& action : lowered.actions) {
        if (action.act == Act::gather_params) chunks.push_back(action.chunk);
        if (action.act == Act::set_step_state) break;
      }
      std::vector<int> wanted(static_cast<std::size_t>(shape.num_chunks));
      std::iota(wanted.begin(), wanted.end(), 0);
      EXPECT_EQ(chunks, wanted) << shape;
      // Nothing else changes.
      std::erase_if(lowered.actions, [](const LoweredAction& action) { return action.act == Act::gather_params; });
      EXPECT_EQ(lowered.actions, lower(shape, stage).actions) << shape;
    }
    shape.mode = ScheduleMode::forward_only;
    EXPECT_EQ(lower(shape, 0, gathering).actions, lower(shape, 0).actions) << shape;
  }
}

TEST(Lowering, StepStateIsSetInTheSlotOfTheForwardThatFollows) {
  std::map<std::pair<int, int>, int> slot_of;
  for (const LoweredAction& action : lower({4, 2, 8, 0}, 1).actions) {
    const std::pair work{action.chunk, action.microbatch};
    if (action.act == Act::set_step_state) {
      EXPECT_TRUE(slot_of.emplace(work, action.slot).second);
    } else if (action.act == Act::forward || action.act == Act::backward || action.act == Act::wait_recv) {
      EXPECT_EQ(slot_of.at(work), action.slot);
    }
  }
}

TEST(Lowering, SharedSlotsAreTheFewestPossible) {
  for (const ScheduleShape& shape : legal_shapes({1, 4, 16, 24})) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      const LoweredSchedule shared = lower(shape, stage, {.slots = SlotPolicy::shared});
      ASSERT_EQ(shared.num_slots, std::vector<int>{peak_in_flight(shape, stage)}) << shape << " stage " << stage;
      check_liveness(shape, stage, shared);
    }
  }
  EXPECT_EQ(lower({4, 2, 8, 0}, 0).num_slots, (std::vector<int>{8, 4}));  // each chunk its own: 12, not 11
}

TEST(Lowering, CountsDoNotGrowWithTheNumberOfMicrobatches) {
  for (const ScheduleShape& shape : {ScheduleShape{1, 1, 1, 0},
                                     {2, 1, 1, 0},
                                     {8, 1, 1, 0},
                                     {2, 2, 1, 2},
                                     {4, 2, 1, 4},
                                     {4, 2, 1, 6},
                                     {8, 4, 1, 8},
                                     {2, 4, 1, 12}}) {
    for (const ScheduleMode mode : {ScheduleMode::training, ScheduleMode::forward_only}) {
      ScheduleShape few = shape, many = shape;
      few.mode = many.mode = mode;
      few.num_microbatches = 48;
      many.num_microbatches = 480;
      for (int stage = 0; stage < shape.num_stages; ++stage) {
        const LoweredSchedule a = lower(few, stage), b = lower(many, stage);
        EXPECT_EQ(a.num_slots, b.num_slots) << few << " stage " << stage;
        EXPECT_EQ(a.receive_buffers, b.receive_buffers) << few << " stage " << stage;
        EXPECT_EQ(a.send_buffers, b.send_buffers) << few << " stage " << stage;
      }
    }
  }
}

TEST(Lowering, OneForwardOneBackwardHoldsOneMessagePerMicrobatchInFlight) {
  for (int stage = 0; stage < 4; ++stage) {
    const LoweredSchedule lowered = lower({4, 1, 32, 0}, stage);
    const int in_flight = 4 - stage;
    EXPECT_EQ(lowered.num_slots, std::vector<int>{in_flight});
    EXPECT_EQ(lowered.receive_buffers[Flow::activation], stage == 0 ? 0 : in_flight + 1);  // and the one posted ahead
    EXPECT_EQ(lowered.receive_buffers[Flow::gradient], stage == 3 ? 0 : 2);
    EXPECT_EQ(lowered.send_buffers[Flow::activation], stage == 3 ? 0 : in_flight);
    EXPECT_EQ(lowered.send_buffers[Flow::gradient], stage == 0 ? 0 : in_flight + 1);
  }
}

TEST(Lowering, ForwardOnlyKeepsNothing) {
  for (int stage = 0; stage < 4; ++stage) {
    const LoweredSchedule lowered = lower({4, 2, 64, 0, ScheduleMode::forward_only}, stage);
    EXPECT_EQ(lowered.num_slots, (std::vector<int>{1, 1}));
    EXPECT_EQ(lowered.receive_buffers[Flow::activation], 2);
    EXPECT_EQ(lowered.send_buffers[Flow::activation], stage == 3 ? 4 : 2);
    EXPECT_EQ(lowered.receive_buffers[Flow::gradient] + lowered.send_buffers[Flow::gradient], 0);
  }
}

TEST(Lowering, CallersMistakesAreInternalErrors) {
  EXPECT_THROW(lower({4, 2, 3, 0}, 0), InternalError);
  EXPECT_THROW(lower({4, 1, 3, 0}, 4), InternalError);
  EXPECT_THROW(lower({4, 1, 3, 0}, -1), InternalError);
  EXPECT_THROW(lower({4, 1, 3, 0}, 0, std::vector<Schedule>(3), {}), InternalError);
}

// ---- liveness: every way to break a sound list is found ------------------------------------------------------------

constexpr ScheduleShape kShape{4, 2, 8, 0};
constexpr int kStage = 1;

/// Applies `change` to the n-th action of its kind and returns the error of check_liveness.
template <class Change>
std::string broken(Act act, Flow flow, int n, Change change, ParamGather gather = ParamGather::never) {
  LoweredSchedule lowered = lower(kShape, kStage, {.gather = gather});
  for (auto it = lowered.actions.begin(); it != lowered.actions.end(); ++it) {
    if (it->act != act || it->flow != flow || n-- > 0) continue;
    change(lowered, it);
    break;
  }
  try {
    check_liveness(kShape, kStage, lowered);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "nothing found";
}

using Where = std::vector<LoweredAction>::iterator;

TEST(Liveness, SoundListsPass) {
  for (ScheduleShape shape : legal_shapes({1, 3, 10})) {
    for (const ScheduleMode mode : {ScheduleMode::training, ScheduleMode::forward_only}) {
      shape.mode = mode;
      for (int stage = 0; stage < shape.num_stages; ++stage) {
        ASSERT_NO_THROW(check_liveness(shape, stage, lower(shape, stage))) << shape << " stage " << stage;
      }
    }
  }
}

TEST(Liveness, ASlotInUseIsFound) {
  const auto text = broken(Act::set_step_state, Flow::activation, 1, [](auto&, Where at) { at->slot = 0; });
  EXPECT_NE(
      text.find("stage 1, action 7 (set_step_state of chunk 0, microbatch 1): slot 0 holds chunk 0, microbatch 0"),
      std::string::npos)
      << text;
}

TEST(Liveness, ABufferInUseIsFound) {
  const auto receive = broken(Act::post_recv, Flow::activation, 3, [](auto&, Where at) { at->buffer = 0; });
  EXPECT_NE(receive.find("receive buffer 0 holds chunk 0, microbatch 0"), std::string::npos) << receive;
  const auto send = broken(Act::forward, Flow::activation, 1, [](auto&, Where at) { at->buffer = 0; });
  EXPECT_NE(send.find("send buffer 0 holds chunk 0, microbatch 0"), std::string::npos) << send;
}

TEST(Liveness, AMissingWaitIsFound) {
  const auto erase = [](LoweredSchedule& lowered, Where at) { lowered.actions.erase(at); };
  const auto receive = broken(Act::wait_recv, Flow::gradient, 0, erase);
  EXPECT_NE(receive.find("receive buffer 0 holds chunk 1, microbatch 0, which is not ready"), std::string::npos)
      << receive;
  const auto send = broken(Act::wait_send, Flow::activation, 0, erase);
  EXPECT_NE(send.find("send buffer 0 holds chunk 0, microbatch 0"), std::string::npos) << send;
  const auto end = broken(Act::wait_send, Flow::gradient, 13, erase);
  EXPECT_NE(end.find("is not given back at the end of the step"), std::string::npos) << end;
}

TEST(Liveness, AReaderOfTheWrongBufferIsFound) {
  const auto input = broken(Act::backward, Flow::gradient, 0, [](auto&, Where at) { at->input_buffer = 1; });
  EXPECT_NE(input.find("receive buffer 1 holds chunk 0, microbatch 1"), std::string::npos) << input;
  const auto gradient = broken(Act::backward, Flow::gradient, 0, [](auto&, Where at) { at->gradient_buffer = 7; });
  EXPECT_NE(gradient.find("receive buffer 7: there are 2"), std::string::npos) << gradient;
  const auto none = broken(Act::forward, Flow::activation, 0, [](auto&, Where at) { at->gradient_buffer = 0; });
  EXPECT_NE(none.find("though nothing is received"), std::string::npos) << none;
}

TEST(Liveness, AWrongPeerIsFound) {
  const auto text = broken(Act::post_send, Flow::activation, 0, [](auto&, Where at) { at->peer = 0; });
  EXPECT_NE(text.find("the neighbour for this flow is stage 2"), std::string::npos) << text;
}

TEST(Liveness, AMissingOrDoubledGatherIsFound) {
  const auto find = [](auto change, ParamGather gather) {
    return broken(Act::gather_params, Flow::activation, 1, change, gather);
  };
  const auto missing =
      find([](LoweredSchedule& lowered, Where at) { lowered.actions.erase(at); }, ParamGather::every_step);
  EXPECT_NE(missing.find("(forward of chunk 1, microbatch 0): the chunk's parameters have not been gathered"),
            std::string::npos)
      << missing;
  const auto doubled = find([](auto&, Where at) { at->chunk = 0; }, ParamGather::every_step);
  EXPECT_NE(doubled.find("(gather_params of chunk 0): the chunk's parameters have been gathered before"),
            std::string::npos)
      << doubled;
  const auto unknown = find([](auto&, Where at) { at->chunk = 2; }, ParamGather::every_step);
  EXPECT_NE(unknown.find("no such chunk"), std::string::npos) << unknown;
  const auto unasked =
      broken(Act::reduce_grads, Flow::activation, 0, [](auto&, Where at) { at->act = Act::gather_params; });
  EXPECT_NE(unasked.find("this list gathers no parameters"), std::string::npos) << unasked;
}

TEST(Liveness, ABackwardBeforeItsForwardIsFound) {
  const auto text = broken(Act::forward, Flow::activation, 0, [](LoweredSchedule& lowered, Where at) {
    at->act = Act::backward;
    at->flow = Flow::gradient;
    lowered.actions.resize(static_cast<std::size_t>(at - lowered.actions.begin()) + 1);
  });
  EXPECT_NE(text.find("slot 0 holds chunk 0, microbatch 0, which is not ready"), std::string::npos) << text;
}

}  // namespace
}  // namespace megalith::pipeline
