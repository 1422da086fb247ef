#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/pipeline/schedule.h"

namespace megalith::pipeline {

/// What a message carries: activations go to the next global stage, gradients to the one before. Each (sender,
/// receiver, flow) is an in-order channel of its own. Activations arrive from stage - 1 and gradients from stage + 1
/// (cyclic), so a stage has at most one incoming and one outgoing channel of each flow.
enum class Flow { activation, gradient };
inline constexpr int kNumFlows = 2;
std::string_view name(Flow flow);

/// One number per flow.
class PerFlow {
 public:
  int& operator[](Flow flow) { return counts_[static_cast<std::size_t>(flow)]; }
  int operator[](Flow flow) const { return counts_[static_cast<std::size_t>(flow)]; }
  bool operator==(const PerFlow&) const = default;

 private:
  std::array<int, kNumFlows> counts_{};
};

/// One thing that a stage does, with everything that it touches. What does not apply is -1.
struct LoweredAction {
  Act act = Act::forward;
  /// Communication: what the message carries. forward: activation, backward: gradient; else of no meaning.
  Flow flow = Flow::activation;
  /// The work that this action belongs to, on this stage: what is computed, for which the step state is set, whose
  /// result is sent, or for which something is received. gather_params serves all microbatches of its chunk,
  /// reduce_grads all chunks: -1 stands there.
  int chunk = -1;
  int microbatch = -1;
  /// Communication: the other stage.
  int peer = -1;
  /// set_step_state, forward, backward, wait_recv: where the saved activations and the step state of (chunk,
  /// microbatch) live. SlotPolicy says whether slots are counted per chunk.
  int slot = -1;
  /// post_recv, wait_recv: the receive buffer. post_send, wait_send: the send buffer.
  /// forward, backward: the send buffer that the result is written to; -1 when the result is not sent.
  int buffer = -1;
  /// forward, backward: the receive buffer of the activation that came in for this (chunk, microbatch) and stays there
  /// until its backward is done; -1 on the first global stage.
  int input_buffer = -1;
  /// backward: the receive buffer of the gradient of the output; -1 on the last global stage.
  int gradient_buffer = -1;
  BackwardTurn turn{};  ///< backward
  bool operator==(const LoweredAction&) const = default;
};
/// "wait_recv of the activation of chunk 1, microbatch 2 from stage 3": for messages and printed lists.
std::string describe(const LoweredAction& action);

/// Whether a slot of one chunk may serve another (chunks of one stage that need the same memory), or each chunk has its
/// own. Sharing takes peak_in_flight() slots in all, the fewest possible.
enum class SlotPolicy { per_chunk, shared };

/// Whether a training step begins with the chunks' gather_params: where ranks update parameters for each other.
enum class ParamGather { never, every_step };

struct LoweringOptions {
  SlotPolicy slots = SlotPolicy::per_chunk;
  ParamGather gather = ParamGather::never;
};

struct LoweredSchedule {
  std::vector<LoweredAction> actions;
  SlotPolicy slot_policy = SlotPolicy::per_chunk;
  ParamGather gather = ParamGather::never;  ///< as asked in training; never when forward-only
  std::vector<int> num_slots;               ///< one entry per chunk, or a single one when shared
  PerFlow receive_buffers;
  PerFlow send_buffers;
};

/// The whole step of a stage, as data: its compute list with communication and resources added. Deterministic, and the
/// same on every rank that asks for the same stage. The rules:
/// - Sends are posted and never block. A send is waited for just before its buffer is written again, and every one at
///   the end of the step.
/// - The receive for the i-th use of a channel is posted just before the wait for the (i-1)-th; the first when the step
///   starts. A wait comes just before the compute action that reads the message.
/// - An activation keeps its receive buffer until the backward of its microbatch is done (layers read their input
///   again), a gradient until its own backward is done; forward-only, an activation until its forward is done.
/// - A slot serves a microbatch from set_step_state, before the forward, to the end of the backward; forward-only, to
///   the end of the forward.
/// - Receive buffers and slots come from first-in-first-out free lists that grow only when empty, so their number is
///   the most that live at once. Send buffers are used in turn; there are just enough that, when one comes round again,
///   a message received since proves that the neighbour has read the old contents. So no compute action ever waits for
///   a send, whatever the speed of the stages; with fewer, large groups deadlock. Forward-only, stages below the last
///   have two, and one that is two ahead of its neighbour waits.
/// - Asked for, gather_params comes once for each chunk, in the chunks' order and before the step's first compute
///   action, so that what is gathered for later chunks arrives beside earlier ones; never when forward-only.
/// - Gradients go to be reduced with each chunk's last backward, layer by layer; reduce_grads, for what is left of
///   them, comes once, after the last backward of all; never when forward-only.
/// With one stage there is no communication.
/// Memory: the counts follow the microbatches in flight and do not grow with their total number.
LoweredSchedule lower(const ScheduleShape& shape, int stage, const LoweringOptions& options = {});

/// The same for compute lists that were made elsewhere, one for each stage. The list of `stage` must pass
/// check_compute_list() (order_check.h).
LoweredSchedule lower(const ScheduleShape& shape, int stage, const std::vector<Schedule>& lists,
                      const LoweringOptions& options);

}  // namespace megalith::pipeline
