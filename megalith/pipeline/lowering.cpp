#include "megalith/pipeline/lowering.h"

#include <algorithm>
#include <deque>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"

namespace megalith::pipeline {
namespace {

/// First in, first out; makes a new number only when none is free.
class FreeList {
 public:
  int take() {
    if (free_.empty()) return count_++;
    const int id = free_.front();
    free_.pop_front();
    return id;
  }
  void give(int id) { free_.push_back(id); }
  int count() const { return count_; }

 private:
  std::deque<int> free_;
  int count_ = 0;
};

/// Whether a compute action takes a message, or its result becomes one.
bool receives(const ScheduleShape& shape, int stage, const Action& action) {
  if (shape.num_stages == 1) return false;
  const int place = global_stage(shape, stage, action.chunk);
  return action.act == Act::forward ? place > 0 : place < last_global_stage(shape);
}

bool sends(const ScheduleShape& shape, int stage, const Action& action) {
  if (shape.num_stages == 1) return false;
  const int place = global_stage(shape, stage, action.chunk);
  return action.act == Act::forward ? place < last_global_stage(shape) : place > 0;
}

Flow flow_of(Act act) { return act == Act::forward ? Flow::activation : Flow::gradient; }

/// How many messages of one flow a stage has read by the time that it finished an action of its list.
class Reads {
 public:
  Reads(const ScheduleShape& shape, int stage, const Schedule& list, Flow flow) : shape_(shape) {
    by_action_.resize(at(2 * total_work(shape)));
    int count = 0;
    for (const Action& action : list) {
      if (flow_of(action.act) == flow && receives(shape, stage, action)) ++count;
      by_action_[key(action.act, action.chunk, action.microbatch)] = count;
    }
  }
  /// `place` is a global stage of the stage that this was made for.
  int by(Act act, int place, int microbatch) const {
    return by_action_[key(act, place / shape_.num_stages, microbatch)];
  }

 private:
  std::size_t key(Act act, int chunk, int microbatch) const {
    return at((act == Act::forward ? 0 : total_work(shape_)) + chunk * shape_.num_microbatches + microbatch);
  }
  ScheduleShape shape_;
  std::vector<int> by_action_;
};

/// The send buffers that a stage needs so that none is written before its old contents are known to have been read.
/// What is known: a microbatch that arrives has passed the global stages before this one (forward) or after it
/// (backward), so the neighbours that it came through are at least that far in their lists.
PerFlow count_send_buffers(const ScheduleShape& shape, int stage, const std::vector<Schedule>& lists) {
  PerFlow needed;
  const int pp = shape.num_stages, last = last_global_stage(shape);
  if (pp == 1) return needed;
  const int next = (stage + 1) % pp, previous = (stage + pp - 1) % pp;
  const Reads next_reads(shape, next, lists[at(next)], Flow::activation);
  const Reads previous_reads(shape, previous, lists[at(previous)], Flow::gradient);
  PerFlow sent, read;
  const auto learn = [&](Flow flow, const Reads& reads, Act act, int place, int microbatch) {
    if (place >= 0 && place <= last) read[flow] = std::max(read[flow], reads.by(act, place, microbatch));
  };
  for (const Action& action : lists[at(stage)]) {
    const int place = global_stage(shape, stage, action.chunk);
    // One of these places lies on the previous stage, the other on the next; with two stages they are the same place.
    const int direction = action.act == Act::forward ? -1 : 1;
    const int came_from = place + direction, passed = place + direction * (pp - 1);
    learn(Flow::gradient, previous_reads, action.act, direction < 0 ? came_from : passed, action.microbatch);
    learn(Flow::activation, next_reads, action.act, direction < 0 ? passed : came_from, action.microbatch);
    if (!sends(shape, stage, action)) continue;
    const Flow flow = flow_of(action.act);
    needed[flow] = std::max({needed[flow], ++sent[flow] - read[flow], 1});  // the 1: for lists that cannot run
  }
  // Forward-only stages run one table, so a sender that waits for the stage above it waits for an earlier row: no
  // deadlock. The last stage sends to a later row of the first, which may be far from reading it.
  if (shape.mode == ScheduleMode::forward_only && stage < pp - 1) {
    needed[Flow::activation] = std::min(needed[Flow::activation], 2);
  }
  return needed;
}

class Lowering {
 public:
  Lowering(const ScheduleShape& shape, int stage, const std::vector<Schedule>& lists, const LoweringOptions& options)
      : shape_(shape), stage_(stage), list_(lists[at(stage)]), policy_(options.slots) {
    result_.slot_policy = options.slots;
    if (shape.mode == ScheduleMode::training) result_.gather = options.gather;
    result_.send_buffers = count_send_buffers(shape, stage, lists);
    slots_.resize(policy_ == SlotPolicy::shared ? 1 : at(shape.num_chunks));
    held_.resize(at(total_work(shape)));
    backwards_done_.resize(at(shape.num_chunks));
    for (const Action& action : list_) {
      if (receives(shape, stage, action)) uses_[at(flow_of(action.act))].push_back(action);
    }
  }

  LoweredSchedule run() {
    result_.actions.reserve(6 * list_.size());
    post_receive(Flow::activation);
    post_receive(Flow::gradient);
    if (result_.gather == ParamGather::every_step) {
      for (int chunk = 0; chunk < shape_.num_chunks; ++chunk)
        result_.actions.push_back({.act = Act::gather_params, .chunk = chunk});
    }
    for (const Action& action : list_) action.act == Act::forward ? forward(action) : backward(action);
    if (shape_.mode == ScheduleMode::training) result_.actions.push_back({.act = Act::reduce_grads});
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      while (waited_[flow] < static_cast<int>(sent_[at(flow)].size())) wait_send(flow);
    }
    for (const FreeList& slots : slots_) result_.num_slots.push_back(slots.count());
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      result_.receive_buffers[flow] = receive_free_[at(flow)].count();
    }
    return std::move(result_);
  }

 private:
  /// What a (chunk, microbatch) holds from its forward on.
  struct Held {
    int slot = -1;
    int input_buffer = -1;
  };

  Held& held(const Action& action) { return held_[at(action.chunk * shape_.num_microbatches + action.microbatch)]; }
  FreeList& slots_of(int chunk) { return slots_[policy_ == SlotPolicy::shared ? 0 : at(chunk)]; }

  /// The stage that sends to this one, or is sent to: activations move up the stages and gradients down.
  int source(Flow flow) const { return neighbour(flow == Flow::activation ? -1 : 1); }
  int target(Flow flow) const { return neighbour(flow == Flow::activation ? 1 : -1); }
  int neighbour(int step) const { return (stage_ + step + shape_.num_stages) % shape_.num_stages; }

  /// Posts the next receive of the flow, if there is one left.
  void post_receive(Flow flow) {
    const std::vector<Action>& uses = uses_[at(flow)];
    if (posted_[flow] == static_cast<int>(uses.size())) return;
    const Action& use = uses[at(posted_[flow]++)];
    const int buffer = receive_free_[at(flow)].take();
    receiving_[at(flow)].push_back(buffer);
    result_.actions.push_back({.act = Act::post_recv,
                               .flow = flow,
                               .chunk = use.chunk,
                               .microbatch = use.microbatch,
                               .peer = source(flow),
                               .buffer = buffer});
  }

  /// The buffer with the message for `action`, or -1 when it takes none.
  int receive(const Action& action) {
    if (!receives(shape_, stage_, action)) return -1;
    const Flow flow = flow_of(action.act);
    post_receive(flow);
    const int buffer = receiving_[at(flow)].front();
    receiving_[at(flow)].pop_front();
    result_.actions.push_back({.act = Act::wait_recv,
                               .flow = flow,
                               .chunk = action.chunk,
                               .microbatch = action.microbatch,
                               .peer = source(flow),
                               .slot = held(action).slot,
                               .buffer = buffer});
    return buffer;
  }

  void wait_send(Flow flow) {
    const int index = waited_[flow]++;
    const Action& sent = sent_[at(flow)][at(index)];
    result_.actions.push_back({.act = Act::wait_send,
                               .flow = flow,
                               .chunk = sent.chunk,
                               .microbatch = sent.microbatch,
                               .peer = target(flow),
                               .buffer = index % result_.send_buffers[flow]});
  }

  /// Frees the next send buffer in turn for the result of `action`; -1 when the result is not sent.
  int claim_send(const Action& action) {
    if (!sends(shape_, stage_, action)) return -1;
    const Flow flow = flow_of(action.act);
    const int index = static_cast<int>(sent_[at(flow)].size());
    if (index - waited_[flow] == result_.send_buffers[flow]) wait_send(flow);
    sent_[at(flow)].push_back(action);
    return index % result_.send_buffers[flow];
  }

  void compute_and_send(const Action& action, int gradient_buffer, const BackwardTurn& turn = {}) {
    const Flow flow = flow_of(action.act);
    const int buffer = claim_send(action);
    result_.actions.push_back({.act = action.act,
                               .flow = flow,
                               .chunk = action.chunk,
                               .microbatch = action.microbatch,
                               .slot = held(action).slot,
                               .buffer = buffer,
                               .input_buffer = held(action).input_buffer,
                               .gradient_buffer = gradient_buffer,
                               .turn = turn});
    if (buffer < 0) return;
    result_.actions.push_back({.act = Act::post_send,
                               .flow = flow,
                               .chunk = action.chunk,
                               .microbatch = action.microbatch,
                               .peer = target(flow),
                               .buffer = buffer});
  }

  void forward(const Action& action) {
    held(action).slot = slots_of(action.chunk).take();
    result_.actions.push_back({.act = Act::set_step_state,
                               .chunk = action.chunk,
                               .microbatch = action.microbatch,
                               .slot = held(action).slot});
    held(action).input_buffer = receive(action);
    compute_and_send(action, -1);
    if (shape_.mode == ScheduleMode::forward_only) release(action);
  }

  void backward(const Action& action) {
    const int gradient_buffer = receive(action);
    const int done = ++backwards_done_[at(action.chunk)];
    compute_and_send(action, gradient_buffer, {.is_first = done == 1, .is_last = done == shape_.num_microbatches});
    if (gradient_buffer >= 0) receive_free_[at(Flow::gradient)].give(gradient_buffer);
    release(action);
  }

  /// Gives back what (chunk, microbatch) has held since its forward.
  void release(const Action& action) {
    slots_of(action.chunk).give(held(action).slot);
    if (held(action).input_buffer >= 0) receive_free_[at(Flow::activation)].give(held(action).input_buffer);
  }

  ScheduleShape shape_;
  int stage_;
  const Schedule& list_;
  SlotPolicy policy_;
  LoweredSchedule result_;
  std::vector<FreeList> slots_;
  std::vector<Held> held_;                            // [chunk * num_microbatches + microbatch]
  std::vector<int> backwards_done_;                   // of each chunk
  std::array<std::vector<Action>, kNumFlows> uses_;   // compute actions that take a message, in order
  std::array<std::deque<int>, kNumFlows> receiving_;  // buffers of receives posted and not waited for
  std::array<FreeList, kNumFlows> receive_free_;
  std::array<std::vector<Action>, kNumFlows> sent_;  // compute actions whose result was sent, in order
  PerFlow posted_, waited_;                          // receives posted, sends waited for
};

}  // namespace

std::string_view name(Flow flow) { return flow == Flow::activation ? "activation" : "gradient"; }

std::string describe(const LoweredAction& action) {
  const auto work = [&] { return str("chunk ", action.chunk, ", microbatch ", action.microbatch); };
  switch (action.act) {
    case Act::post_send:
    case Act::wait_send:
      return str(name(action.act), " of the ", name(action.flow), " of ", work(), " to stage ", action.peer);
    case Act::post_recv:
    case Act::wait_recv:
      return str(name(action.act), " of the ", name(action.flow), " of ", work(), " from stage ", action.peer);
    case Act::gather_params:
      return str(name(action.act), " of chunk ", action.chunk);
    case Act::reduce_grads:
      return std::string(name(action.act));
    default:
      return str(name(action.act), " of ", work());
  }
}

LoweredSchedule lower(const ScheduleShape& shape, int stage, const std::vector<Schedule>& lists,
                      const LoweringOptions& options) {
  require_legal(shape);
  if (lists.size() != at(shape.num_stages) || stage < 0 || stage >= shape.num_stages) {
    throw InternalError(
        str("[lower] stage = ", stage, " with ", lists.size(), " lists: there are ", shape.num_stages, " stages"));
  }
  return Lowering(shape, stage, lists, options).run();
}

void widen(LoweredSchedule& schedule, const LoweredSchedule& other) {
  if (schedule.slot_policy != other.slot_policy || schedule.num_slots.size() != other.num_slots.size())
    throw InternalError("[widen] the slots of one schedule are shared, and those of the other are not");
  for (std::size_t pool = 0; pool < schedule.num_slots.size(); ++pool)
    schedule.num_slots[pool] = std::max(schedule.num_slots[pool], other.num_slots[pool]);
  for (const Flow flow : {Flow::activation, Flow::gradient}) {
    schedule.receive_buffers[flow] = std::max(schedule.receive_buffers[flow], other.receive_buffers[flow]);
    schedule.send_buffers[flow] = std::max(schedule.send_buffers[flow], other.send_buffers[flow]);
  }
}

LoweredSchedule lower(const ScheduleShape& shape, int stage, const LoweringOptions& options) {
  const int pp = shape.num_stages;
  std::vector<Schedule> lists(at(std::max(pp, 0)));
  if (stage >= 0 && stage < pp) {
    for (const int neighbour : {stage, (stage + 1) % pp, (stage + pp - 1) % pp}) {
      lists[at(neighbour)] = compute_schedule(shape, neighbour);
    }
  }
  return lower(shape, stage, lists, options);
}

}  // namespace megalith::pipeline
