#include "megalith/pipeline/simulate.h"

#include <algorithm>
#include <deque>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"
#include "megalith/pipeline/liveness.h"

namespace megalith::pipeline {
namespace {

/// One end of a message: who posted it, when.
struct Post {
  double time = 0;
  std::size_t action = 0;  // index in the stage's list
};

/// The k-th send meets the k-th receive.
struct Channel {
  std::vector<Post> sends;
  std::vector<Post> receives;
  int sender = 0;
  int receiver = 0;

  bool matched(std::size_t k) const { return k < sends.size() && k < receives.size(); }
  double complete(std::size_t k, double latency) const { return std::max(sends[k].time, receives[k].time) + latency; }
};

struct StageState {
  std::size_t next = 0;  // action
  double clock = 0;
  double held_up = 0;  // by sends since the last compute action
  int in_flight = 0;
  std::array<std::vector<std::size_t>, kNumFlows> send_number, receive_number;  // [buffer]: number in its channel
};

class Run {
 public:
  Run(const ScheduleShape& shape, const std::vector<LoweredSchedule>& lowered, const Costs& costs)
      : shape_(shape),
        lowered_(lowered),
        costs_(costs),
        states_(lowered.size()),
        channels_(lowered.size() * kNumFlows) {
    result_.stages.resize(lowered.size());
    for (int stage = 0; stage < shape.num_stages; ++stage) prepare(stage);
  }

  Simulation run() {
    std::deque<int> ready;
    for (int stage = 0; stage < shape_.num_stages; ++stage) ready.push_back(stage);
    while (!ready.empty()) {
      const int stage = ready.front();
      ready.pop_front();
      while (states_[at(stage)].next < actions(stage).size() && step(stage, ready)) ++states_[at(stage)].next;
    }
    require_finished();
    for (const StageState& state : states_) result_.makespan = std::max(result_.makespan, state.clock);
    for (StageResult& stage : result_.stages) stage.idle = result_.makespan - stage.busy;
    count_queues();
    return std::move(result_);
  }

 private:
  const std::vector<LoweredAction>& actions(int stage) const { return lowered_[at(stage)].actions; }
  /// A stage has one incoming channel a flow, so the receiver and the flow name it.
  Channel& channel(int receiver, Flow flow) { return channels_[at(receiver) * kNumFlows + at(flow)]; }

  void prepare(int stage) {
    const LoweredSchedule& lowered = lowered_[at(stage)];
    StageResult& result = result_.stages[at(stage)];
    result.num_slots = lowered.num_slots;
    result.receive_buffers = lowered.receive_buffers;
    result.send_buffers = lowered.send_buffers;
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      const int step = flow == Flow::activation ? -1 : 1;
      channel(stage, flow).receiver = stage;
      channel(stage, flow).sender = (stage + step + shape_.num_stages) % shape_.num_stages;
      states_[at(stage)].send_number[at(flow)].resize(at(lowered.send_buffers[flow]));
      states_[at(stage)].receive_number[at(flow)].resize(at(lowered.receive_buffers[flow]));
    }
  }

  ChunkCost cost(int stage, int chunk) const {
    if (!costs_.chunks.empty()) return costs_.chunks[at(global_stage(shape_, stage, chunk))];
    return {costs_.forward / shape_.num_chunks, costs_.backward / shape_.num_chunks};
  }

  /// False when the action has to wait for another stage.
  bool step(int stage, std::deque<int>& ready) {
    StageState& state = states_[at(stage)];
    const LoweredAction& action = actions(stage)[state.next];
    const std::size_t flow = at(action.flow);
    switch (action.act) {
      case Act::post_send: {
        Channel& to = channel(action.peer, action.flow);
        state.send_number[flow][at(action.buffer)] = to.sends.size();
        to.sends.push_back({state.clock, state.next});
        meet(to, to.sends.size() - 1, to.receiver, ready);
        return true;
      }
      case Act::post_recv: {
        Channel& from = channel(stage, action.flow);
        state.receive_number[flow][at(action.buffer)] = from.receives.size();
        from.receives.push_back({state.clock, state.next});
        meet(from, from.receives.size() - 1, from.sender, ready);
        return true;
      }
      case Act::wait_send: {
        const double before = state.clock;
        const bool done = wait(state, channel(action.peer, action.flow), state.send_number[flow][at(action.buffer)]);
        state.held_up += state.clock - before;
        return done;
      }
      case Act::wait_recv:
        return wait(state, channel(stage, action.flow), state.receive_number[flow][at(action.buffer)]);
      case Act::forward:
      case Act::backward:
        compute(stage, action);
        return true;
      default:
        return true;
    }
  }

  bool wait(StageState& state, const Channel& channel, std::size_t number) const {
    if (!channel.matched(number)) return false;
    state.clock = std::max(state.clock, channel.complete(number, costs_.latency));
    return true;
  }

  void compute(int stage, const LoweredAction& action) {
    StageState& state = states_[at(stage)];
    StageResult& result = result_.stages[at(stage)];
    const bool forward = action.act == Act::forward;
    const ChunkCost costs = cost(stage, action.chunk);
    const double start = state.clock, took = forward ? costs.forward : costs.backward;
    state.clock += took;
    result.busy += took;
    result.send_wait += std::exchange(state.held_up, 0.0);
    result.timeline.push_back({{action.act, action.chunk, action.microbatch}, start, state.clock});
    if (forward) result.peak_in_flight = std::max(result.peak_in_flight, ++state.in_flight);
    if (!forward || shape_.mode == ScheduleMode::forward_only) --state.in_flight;
  }

  /// Called when one end was posted: if the other is there too, they must belong together, and `other` may go on.
  void meet(const Channel& channel, std::size_t number, int other, std::deque<int>& ready) const {
    if (!channel.matched(number)) return;
    const LoweredAction& send = actions(channel.sender)[channel.sends[number].action];
    const LoweredAction& receive = actions(channel.receiver)[channel.receives[number].action];
    const int place = global_stage(shape_, channel.sender, send.chunk) + (send.flow == Flow::activation ? 1 : -1);
    if (place != global_stage(shape_, channel.receiver, receive.chunk) || send.microbatch != receive.microbatch) {
      throw InternalError(str("[schedule] stage ", channel.receiver, ", action ", channel.receives[number].action, " (",
                              describe(receive), ") meets the wrong message: stage ", channel.sender, ", action ",
                              channel.sends[number].action, " (", describe(send), ")"));
    }
    ready.push_back(other);
  }

  void require_finished() const {
    std::string stuck;
    int count = 0;
    for (int stage = 0; stage < shape_.num_stages; ++stage) {
      const std::size_t next = states_[at(stage)].next;
      if (next == actions(stage).size()) continue;
      if (++count <= 4) stuck += str("\n  stage ", stage, ", action ", next, ": ", describe(actions(stage)[next]));
    }
    if (count == 0) return;
    throw InternalError(str("[schedule] deadlock: ", count, " of ", shape_.num_stages, " stages wait for ever", stuck,
                            count > 4 ? "\n  ..." : ""));
  }

  /// Sends are posted in order and complete in order, so one sweep per channel counts those in between.
  void count_queues() {
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      for (int receiver = 0; receiver < shape_.num_stages; ++receiver) {
        const Channel& link = channel(receiver, flow);
        int& depth = result_.stages[at(link.sender)].queue_depth[flow];
        std::size_t complete = 0;
        for (std::size_t k = 0; k < link.sends.size(); ++k) {
          while (complete <= k && link.complete(complete, costs_.latency) <= link.sends[k].time) ++complete;
          depth = std::max(depth, static_cast<int>(k + 1 - complete));
        }
      }
    }
  }

  ScheduleShape shape_;
  const std::vector<LoweredSchedule>& lowered_;
  const Costs& costs_;
  std::vector<StageState> states_;
  std::vector<Channel> channels_;  // [receiver * kNumFlows + flow]
  Simulation result_;
};

}  // namespace

Simulation simulate(const ScheduleShape& shape, const std::vector<LoweredSchedule>& lowered, const Costs& costs) {
  require_legal(shape);
  if (lowered.size() != at(shape.num_stages)) {
    throw InternalError(str("[simulate] ", lowered.size(), " lists: there are ", shape.num_stages, " stages"));
  }
  const auto places = at(shape.num_stages * shape.num_chunks);
  if (!costs.chunks.empty() && costs.chunks.size() != places) {
    throw ShapeError(str("[simulate] costs.chunks has ", costs.chunks.size(), " entries: there are ", places,
                         " global stages (pp * chunks)"));
  }
  for (int stage = 0; stage < shape.num_stages; ++stage) check_liveness(shape, stage, lowered[at(stage)]);
  return Run(shape, lowered, costs).run();
}

Simulation simulate(const ScheduleShape& shape, const Costs& costs) {
  const std::vector<Schedule> lists = compute_schedules(shape);
  std::vector<LoweredSchedule> lowered;
  for (int stage = 0; stage < shape.num_stages; ++stage) lowered.push_back(lower(shape, stage, lists, {}));
  return simulate(shape, lowered, costs);
}

}  // namespace megalith::pipeline
