#pragma once
#include <array>
#include <optional>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// Sums the gradients of a buffer over the ranks that hold the same parameters. This is where a layer's gradient leaves
/// for the data-parallel ranks.
///
/// Over the reduction group (data-parallel ranks) gradients go bucket by bucket. A bucket leaves as soon as the last
/// backward pass of the step has completed its layers, so on GPUs most of the sum overlaps with the rest of that pass
/// (comm::Priority; little compute is left for the bucket of the last layers). A reduce-scatter gives every rank the
/// sum of its shard of the bucket. Then an all-gather gives it the other shards. A sharded optimizer needs only its
/// own, so it has no all-gather, and the rest of the bucket is undefined. The sums are the same in both cases.
///
/// A bucket with a gradient window (ShardedState::gradients) leaves in the backward pass of every microbatch. The
/// reduce-scatter of a step's first one writes this rank's shard of the sums. That of a later one leaves its result in
/// the window, from where it is added to the shard. The next bucket of the window waits for this before backward writes
/// its gradients. So the order of sums is: over the ranks, then over the microbatches.
///
/// Ranks of one model copy that hold the same parameters (grid::replica_group) must end with the same bits. So after
/// the last backward pass, between the two calls, shards of such buckets are
///  - summed over tp, if each rank of tp has seen a share of the rows: with sequence parallelism these are the gains
///    and shifts of the layer norms. They are few, and one call sums all of them with the rest of their buckets. All
///    other parameters see gathered rows, also the biases of row-parallel layers and the position table;
///  - summed over embd, the two ends of the pipeline: the tied token table;
///  - sent from their owner to the other ranks of tp, if these have summed the same gradients over data-parallel ranks
///    in an order that may differ (comm::Channel::sums_in_rank_order(); two terms have one order).
///
/// Every rank of a group makes the same calls in the same order. Elements are summed one by one, so on CPU transports
/// the buckets change no bits. Communicates per step: over data-parallel ranks (n-1)/n of the gradients, or twice that,
/// and of those with windows for every microbatch (ParamBuffer::sum_bytes);
/// over tp twice (n-1)/n of the partial ones, or once a shard of the parameters that tp shares; over embd a shard of
/// the table.
class GradReducer {
 public:
  /// Whether later microbatches of the step add to the gradients of a backward pass.
  enum class Pass : std::uint8_t { earlier, last };

  /// The reduction group of `params` has one rank per shard.
  GradReducer(const ParamBuffer& params, const comm::Mesh& mesh);

  /// A new step: nothing is summed yet.
  void begin();
  /// The backward pass of a chunk for a microbatch begins.
  void begin_pass(Pass pass) { pass_ = pass; }
  /// The pass is about to write gradients of this layer, [0, number of layers of the model). The Exec waits until the
  /// layer's window is free. Calls after the first one in a pass do nothing. Throws InternalError if the pass has not
  /// completed the layer that has the window.
  void layer_begins(Exec& ex, Index layer);
  /// The pass has added to all gradients of this layer. Sends the buckets that this completes: those with a window in
  /// every pass, others in the last one.
  void layer_done(Exec& ex, Index layer);
  /// The last backward pass is complete: sends the buckets that have not been sent in this step, and sums over tp and
  /// embd.
  void send_rest(Exec& ex);
  /// The Exec waits until the sums of a bucket of ParamBuffer::buckets() have arrived. Throws InternalError if it has
  /// not been sent.
  void wait(Exec& ex, std::size_t bucket);

 private:
  /// The progress of a bucket in this step, and the other ranks that hold it.
  struct Progress {
    std::size_t layers_done = 0;
    bool sent = false;          ///< for the last time in the step
    bool in_pass = false;       ///< has the window: the pass writes its gradients
    bool is_unsettled = false;  ///< with a window: the latest sum has not been added to the shard
    Index passes = 0;           ///< with a window: how many have been sent
    comm::Priority priority = comm::Priority::alone;
    comm::Pending sum, join, shards;
    std::optional<comm::Group> replicas{};  ///< the ranks of the model copy that hold the bucket, too; the same in
                                            ///< every step
  };
  bool has_window(std::size_t bucket) const { return params_.buckets()[bucket].has_window(); }
  /// The window of a bucket is free, and gaps in it are 0.
  void take_window(Exec& ex, std::size_t bucket);
  void send_window(Exec& ex, std::size_t bucket);
  /// Waits for the latest sum of a bucket with a window, and adds it to the shard.
  void settle(Exec& ex, std::size_t bucket);
  /// Over the reduction group.
  void send(Exec& ex, std::size_t bucket);
  void gather(Exec& ex, std::size_t bucket);
  /// Whether the shards of a bucket go to other ranks of the model copy between send() and gather().
  bool is_joined(std::size_t bucket) const;
  /// Starts that for one bucket. Buckets that are partial along tp go together.
  comm::Pending join(Exec& ex, std::size_t bucket) const;
  /// Whether a bucket of layers that takes some time is still to come. Buckets that tp shares are small: vectors.
  bool has_layers_left() const;

  const ParamBuffer& params_;
  comm::Group data_;
  std::optional<comm::Group> partial_;  ///< over which partial_grads() are summed
  std::vector<Progress> progress_;      // of each bucket
  Pass pass_ = Pass::last;
  std::array<std::optional<std::size_t>, kGradWindows> in_window_;  ///< the bucket whose gradients a window has
};

}  // namespace megalith::optim
