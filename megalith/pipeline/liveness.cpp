#include "megalith/pipeline/liveness.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"

namespace megalith::pipeline {
namespace {

/// (chunk, microbatch) of this stage.
struct Work {
  int chunk = -1;
  int microbatch = -1;
  bool operator==(const Work&) const = default;
};

/// A buffer goes from `empty` through `filling` (receive posted | result written) to `full` (arrived | send posted).
enum class State { empty, filling, full };

struct Place {
  State state = State::empty;
  Work work;
};

class Walk {
 public:
  Walk(const ScheduleShape& shape, int stage, const LoweredSchedule& lowered)
      : shape_(shape), stage_(stage), lowered_(lowered), gathered_(at(shape.num_chunks)) {
    for (const int count : lowered.num_slots) slots_.emplace_back(at(count));
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      receive_[at(flow)].resize(at(lowered.receive_buffers[flow]));
      send_[at(flow)].resize(at(lowered.send_buffers[flow]));
    }
  }

  void run() {
    for (next_ = 0; next_ < lowered_.actions.size(); ++next_) step(lowered_.actions[next_]);
    for (const auto& list : slots_) require_all_empty(list, "slot");
    for (const Flow flow : {Flow::activation, Flow::gradient}) {
      require_all_empty(receive_[at(flow)], "receive buffer");
      require_all_empty(send_[at(flow)], "send buffer");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InternalError(
        str("[schedule] stage ", stage_, ", action ", next_, " (", describe(lowered_.actions[next_]), "): ", what));
  }

  void require_all_empty(const std::vector<Place>& places, const char* what) const {
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].state == State::empty) continue;
      throw InternalError(str("[schedule] stage ", stage_, ": ", what, " ", i,
                              " is not given back at the end of the step: it holds chunk ", places[i].work.chunk,
                              ", microbatch ", places[i].work.microbatch));
    }
  }

  /// Takes the place from one state to the next; its work must be `work` unless it is empty.
  void move(std::vector<Place>& places, int id, State from, State to, Work work, const char* what) const {
    if (id < 0 || id >= static_cast<int>(places.size())) fail(str(what, " ", id, ": there are ", places.size()));
    Place& place = places[at(id)];
    if (place.state != from || (from != State::empty && place.work != work)) {
      fail(place.state == State::empty
               ? str(what, " ", id, " holds nothing")
               : str(what, " ", id, " holds chunk ", place.work.chunk, ", microbatch ", place.work.microbatch,
                     place.state == State::full ? "" : ", which is not ready"));
    }
    place = {to, to == State::empty ? Work{} : work};
  }

  void require_chunk(int chunk) const {
    if (chunk < 0 || chunk >= shape_.num_chunks) fail("no such chunk");
  }

  std::vector<Place>& slots_of(int chunk) {
    require_chunk(chunk);
    return slots_[lowered_.slot_policy == SlotPolicy::shared ? 0 : at(chunk)];
  }

  void read(int buffer, Flow flow, State after, Work work) {
    move(receive_[at(flow)], buffer, State::full, after, work, "receive buffer");
  }
  void read_nothing(int buffer) const {
    if (buffer != -1) fail(str("reads receive buffer ", buffer, " though nothing is received for it"));
  }

  void gather(int chunk) {
    if (lowered_.gather == ParamGather::never) fail("this list gathers no parameters");
    require_chunk(chunk);
    if (gathered_[at(chunk)]) fail("the chunk's parameters have been gathered before");
    gathered_[at(chunk)] = true;
  }

  void compute(const LoweredAction& action) {
    const Work work{action.chunk, action.microbatch};
    const int place = global_stage(shape_, stage_, action.chunk), last = last_global_stage(shape_);
    const bool alone = shape_.num_stages == 1, forward = action.act == Act::forward;
    const bool done = !forward || shape_.mode == ScheduleMode::forward_only;  // nothing of it is needed any more
    const State after = done ? State::empty : State::full;
    move(slots_of(action.chunk), action.slot, forward ? State::filling : State::full, after, work, "slot");
    if (lowered_.gather == ParamGather::every_step && !gathered_[at(action.chunk)])
      fail("the chunk's parameters have not been gathered");
    if (!alone && place > 0)
      read(action.input_buffer, Flow::activation, after, work);
    else
      read_nothing(action.input_buffer);
    if (!alone && !forward && place < last)
      read(action.gradient_buffer, Flow::gradient, State::empty, work);
    else
      read_nothing(action.gradient_buffer);
    const bool sent = !alone && (forward ? place < last : place > 0);
    if (!sent && action.buffer != -1) fail(str("writes send buffer ", action.buffer, " though nothing is sent"));
    if (sent) move(send_[at(action.flow)], action.buffer, State::empty, State::filling, work, "send buffer");
  }

  void require_peer(const LoweredAction& action, int step) const {
    const int neighbour = (stage_ + step + shape_.num_stages) % shape_.num_stages;
    if (action.peer != neighbour) fail(str("the neighbour for this flow is stage ", neighbour));
  }

  void step(const LoweredAction& action) {
    const Work work{action.chunk, action.microbatch};
    const int up = action.flow == Flow::activation ? 1 : -1;
    std::vector<Place>& received = receive_[at(action.flow)];
    std::vector<Place>& sent = send_[at(action.flow)];
    switch (action.act) {
      case Act::set_step_state:
        return move(slots_of(action.chunk), action.slot, State::empty, State::filling, work, "slot");
      case Act::forward:
      case Act::backward:
        return compute(action);
      case Act::post_send:
        require_peer(action, up);
        return move(sent, action.buffer, State::filling, State::full, work, "send buffer");
      case Act::wait_send:
        require_peer(action, up);
        return move(sent, action.buffer, State::full, State::empty, work, "send buffer");
      case Act::post_recv:
        require_peer(action, -up);
        return move(received, action.buffer, State::empty, State::filling, work, "receive buffer");
      case Act::wait_recv:
        require_peer(action, -up);
        return move(received, action.buffer, State::filling, State::full, work, "receive buffer");
      case Act::gather_params:
        return gather(action.chunk);
      case Act::reduce_grads:
        return;
      case Act::backward_input:
      case Act::backward_weight:
        fail("split backwards are not lowered");
    }
  }

  ScheduleShape shape_;
  int stage_;
  const LoweredSchedule& lowered_;
  std::size_t next_ = 0;
  std::vector<std::vector<Place>> slots_;
  std::array<std::vector<Place>, kNumFlows> receive_, send_;
  std::vector<bool> gathered_;  // by chunk
};

}  // namespace

void check_liveness(const ScheduleShape& shape, int stage, const LoweredSchedule& lowered) {
  Walk(shape, stage, lowered).run();
}

}  // namespace megalith::pipeline
