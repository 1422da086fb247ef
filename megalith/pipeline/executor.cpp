#include "megalith/pipeline/executor.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"

namespace megalith::pipeline {
namespace {

constexpr Flow kFlows[kNumFlows] = {Flow::activation, Flow::gradient};

/// What the ops of an action are for; those that communicate mark themselves.
StepPhase phase_of(Act act) {
  switch (act) {
    case Act::set_step_state:
    case Act::gather_params:
    case Act::forward:
      return StepPhase::forward;
    case Act::backward:
    case Act::backward_input:
    case Act::backward_weight:
    case Act::reduce_grads:
      return StepPhase::backward;
    case Act::post_send:
    case Act::wait_send:
    case Act::post_recv:
    case Act::wait_recv:
      return StepPhase::communication;
  }
  return StepPhase::other;
}

Tensor pick(const std::vector<Tensor>& buffers, int index) {
  return index < 0 ? Tensor() : buffers[static_cast<std::size_t>(index)];
}

}  // namespace

Executor::Executor(LoweredSchedule schedule, comm::Group pp, const Boundary& boundary)
    : schedule_(std::move(schedule)), pp_(std::move(pp)), boundary_(boundary) {}

Index Executor::buffer_bytes(const LoweredSchedule& schedule, const Boundary& boundary) {
  Index count = 0;
  for (const Flow flow : kFlows) count += schedule.receive_buffers[flow] + schedule.send_buffers[flow];
  return count * message_bytes(boundary);
}

void Executor::allocate(MemoryLedger& ledger) {
  memory_ = ledger.take("pipeline buffers", buffer_bytes());
  carve();
}

void Executor::change(LoweredSchedule schedule, const Shape& shape) {
  schedule_ = std::move(schedule);
  boundary_.shape = shape;
  if (buffer_bytes() > memory_.bytes()) {
    throw InternalError(str("[Executor::change] buffers of ", buffer_bytes(), " bytes: must fit the ", memory_.bytes(),
                            " bytes that were allocated"));
  }
  carve();
}

void Executor::carve() {
  Index offset = 0;
  const auto cut = [&](std::vector<Tensor>& buffers, std::vector<comm::Pending>& pending, int count) {
    buffers.clear();
    pending.clear();
    pending.resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i, offset += message_bytes(boundary_))
      buffers.push_back(memory_.view(boundary_.shape, boundary_.dtype, offset));
  };
  for (const Flow flow : kFlows) {
    cut(receive_buffers_[at(flow)], receiving_[at(flow)], schedule_.receive_buffers[flow]);
    cut(send_buffers_[at(flow)], sending_[at(flow)], schedule_.send_buffers[flow]);
  }
}

void Executor::run(Exec& ex, Stage& stage) {
  for (const LoweredAction& action : schedule_.actions) run_action(ex, stage, action);
  ex.set_call_site({});
}

void Executor::run_action(Exec& ex, Stage& stage, const LoweredAction& action) {
  const std::size_t flow = at(action.flow);
  const auto buffer = static_cast<std::size_t>(action.buffer);
  ex.set_call_site({.chunk = action.chunk, .microbatch = action.microbatch, .phase = phase_of(action.act)});
  switch (action.act) {
    case Act::set_step_state:
      return stage.set_step_state(ex, action.chunk, action.microbatch, action.slot);
    case Act::forward:
      return stage.forward(ex, action.chunk, action.slot, received(Flow::activation, action.input_buffer),
                           sent(Flow::activation, action.buffer));
    case Act::backward:
      return stage.backward(ex, action.chunk, action.slot, received(Flow::gradient, action.gradient_buffer),
                            sent(Flow::gradient, action.buffer), action.turn);
    case Act::post_recv:
      receiving_[flow][buffer] =
          comm::recv(ex, pp_, receive_buffers_[flow][buffer], action.peer, static_cast<int>(flow));
      return;
    case Act::wait_recv:
      return receiving_[flow][buffer].wait(ex);
    case Act::post_send:
      sending_[flow][buffer] = comm::send(ex, pp_, send_buffers_[flow][buffer], action.peer, static_cast<int>(flow));
      return;
    case Act::wait_send:
      return sending_[flow][buffer].wait(ex);
    case Act::gather_params:
      return stage.gather_params(ex, action.chunk);
    case Act::reduce_grads:
      return stage.reduce_grads(ex);
    case Act::backward_input:
    case Act::backward_weight:
      break;
  }
  throw InternalError("[Executor] action " + std::string(name(action.act)) +
                      ": no schedule of this version contains it");
}

Tensor Executor::received(Flow flow, int buffer) const { return pick(receive_buffers_[at(flow)], buffer); }
Tensor Executor::sent(Flow flow, int buffer) const { return pick(send_buffers_[at(flow)], buffer); }

}  // namespace megalith::pipeline
