#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/pipeline/schedule.h"

namespace megalith::pipeline {

/// What a message carries. Activations go to the next global stage, gradients to the previous one. Each (sender,
/// receiver, flow) is a separate in-order channel. Activations arrive from stage - 1 and gradients from stage + 1
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

/// One action of a stage, with all resources that it uses. Members that do not apply are -1.
struct LoweredAction {
  Act act = Act::forward;
  /// Communication: what the message carries. forward: activation, backward: gradient. No meaning for other actions.
  Flow flow = Flow::activation;
  /// The work of this action, on this stage: what is computed, for which the step state is set, whose result is sent,
  /// or for which a message is received. gather_params serves all microbatches of its chunk, and reduce_grads all
  /// chunks: there it is -1.
  int chunk = -1;
  int microbatch = -1;
  /// Communication: the other stage.
  int peer = -1;
  /// set_step_state, forward, backward, wait_recv: the slot of the saved activations and the step state of (chunk,
  /// microbatch). SlotPolicy decides whether slots are counted per chunk.
  int slot = -1;
  /// post_recv, wait_recv: the receive buffer. post_send, wait_send: the send buffer.
  /// forward, backward: the send buffer to which the result is written; -1 if the result is not sent.
  int buffer = -1;
  /// forward, backward: the receive buffer of the input activation of this (chunk, microbatch). It stays there until
  /// its backward is done. -1 on the first global stage.
  int input_buffer = -1;
  /// backward: the receive buffer of the gradient of the output; -1 on the last global stage.
  int gradient_buffer = -1;
  BackwardTurn turn{};  ///< backward
  bool operator==(const LoweredAction&) const = default;
};
/// "wait_recv of the activation of chunk 1, microbatch 2 from stage 3": for messages and printed lists.
std::string describe(const LoweredAction& action);

/// Whether a slot of one chunk may serve another (chunks of one stage that need the same memory), or each chunk has its
/// own slots. Sharing takes peak_in_flight() slots in all, the fewest possible.
enum class SlotPolicy { per_chunk, shared };

/// Whether a training step begins with gather_params of the chunks: if ranks update parameters for each other.
enum class ParamGather { never, every_step };

struct LoweringOptions {
  SlotPolicy slots = SlotPolicy::per_chunk;
  ParamGather gather = ParamGather::never;
};

struct LoweredSchedule {
  std::vector<LoweredAction> actions;
  SlotPolicy slot_policy = SlotPolicy::per_chunk;
  ParamGather gather = ParamGather::never;  ///< as requested in training; never if forward-only
  std::vector<int> num_slots;               ///< one entry per chunk, or a single one if shared
  PerFlow receive_buffers;
  PerFlow send_buffers;
};

/// The whole step of a stage as data: its compute list with communication and resources added. Deterministic, and the
/// same on every rank for the same stage. The rules:
/// - Sends are posted and never block. A send is waited for just before its buffer is written again. All sends are
///   waited for at the end of the step.
/// - The receive for the i-th use of a channel is posted just before the wait for the (i-1)-th; the first is posted at
///   the start of the step. A wait comes just before the compute action that reads the message.
/// - An activation keeps its receive buffer until the backward of its microbatch is done, because layers read their
///   input again. A gradient keeps it until its own backward is done. If forward-only, an activation keeps it until its
///   forward is done.
/// - A slot serves a microbatch from set_step_state, before the forward, to the end of the backward; if forward-only,
///   to the end of the forward.
/// - Receive buffers and slots come from first-in-first-out free lists that grow only when empty. So their number is
///   the most that are in use at the same time.
/// - Send buffers are used in rotation. There are just enough that, when one is used again, a message received since
///   proves that the neighbour has read the old contents. So no compute action ever waits for a send, whatever the
///   speed of the stages; with fewer buffers, large groups deadlock. If forward-only, the stages below the last have
///   two, and a stage that is two ahead of its neighbour waits.
/// - If requested, gather_params comes once for each chunk, in the order of the chunks, before the first compute action
///   of the step. So gathers for later chunks overlap with the compute of earlier ones. Never if forward-only.
/// - Gradients are reduced layer by layer, during the last backward of each chunk. reduce_grads reduces the rest. It
///   comes once, after the last backward of all. Never if forward-only.
/// With one stage there is no communication.
/// Memory: the counts depend on the microbatches in flight, and do not grow with their total number.
LoweredSchedule lower(const ScheduleShape& shape, int stage, const LoweringOptions& options = {});

/// The same for compute lists that were made elsewhere, one per stage. The list of `stage` must pass
/// check_compute_list() (order_check.h).
LoweredSchedule lower(const ScheduleShape& shape, int stage, const std::vector<Schedule>& lists,
                      const LoweringOptions& options);

/// Adds slots and buffers to a schedule until it has as many as another one of the same stage and slot policy. Its
/// actions use those that it had.
void widen(LoweredSchedule& schedule, const LoweredSchedule& other);

}  // namespace megalith::pipeline
