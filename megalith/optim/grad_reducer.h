#pragma once
#include <optional>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// Sums a buffer's gradients over the ranks that hold the same parameters. Over its reduction group (data-parallel
/// ranks) they go bucket by bucket, each as soon as the step's last backward has passed its layers, so that on GPUs
/// most of the sum runs beside the rest of that backward (comm::Priority; little is left beside the last layers'
/// bucket): a reduce-scatter leaves every rank the sum of its shard of the bucket, and an all-gather brings it the
/// others' unless the optimizer is sharded, which needs its own only; the rest of the bucket is then undefined. The two
/// ways take the same sums.
///
/// Ranks of one model copy that hold the same parameters (grid::replica_group) must end with the same bits. Between the
/// two calls, when the last backward is over, shards of such buckets are therefore
///  - summed over tp, where each of its ranks has seen a share of the rows: under sequence parallelism the gains and
///    shifts of the layer norms, few, and by one call for all of them with the rest of their buckets. All other
///    parameters meet rows that have been gathered, the biases of row-parallel layers and the position table too;
///  - summed over embd, the two ends of the pipeline: the tied token table;
///  - brought from their owner to tp's other ranks, where those have summed the same gradients over data-parallel ranks
///  in an order that
///    may be another (comm::Channel::sums_in_rank_order(); two terms have one order).
///
/// Every rank of a group makes the same calls in the same order. Elements are summed one by one, so on CPU transports
/// the buckets change no bits. Communicates (n-1)/n of the gradients per step over data-parallel ranks, or twice that;
/// over tp twice (n-1)/n of the partial ones, or once a shard of what tp holds; over embd a shard of the table.
class GradReducer {
 public:
  /// The reduction group of `params` has a rank for each of its shards.
  GradReducer(const ParamBuffer& params, const comm::Mesh& mesh);

  /// A new step: nothing is summed yet.
  void begin();
  /// No later pass of the step adds to the gradients of this layer, [0, number of layers of the model).
  void layer_done(Exec& ex, Index layer);
  /// The last backward is over: sends what has not gone and sums it over tp and embd.
  void send_rest(Exec& ex);
  /// Holds the Exec until the sums of a bucket of ParamBuffer::buckets() have arrived. Throws InternalError when it has
  /// not been sent.
  void wait(Exec& ex, std::size_t bucket);

 private:
  /// How far a bucket has come in this step, and who else holds it.
  struct Progress {
    std::size_t layers_done = 0;
    bool sent = false;
    comm::Priority priority = comm::Priority::alone;
    comm::Pending sum, join, shards;
    std::optional<comm::Group> replicas{};  ///< that hold the bucket, too, in the model copy; the same in every step
  };
  /// Over the reduction group.
  void send(Exec& ex, std::size_t bucket);
  void gather(Exec& ex, std::size_t bucket);
  /// Whether the shards of a bucket go to other ranks of the model copy between send() and gather().
  bool is_joined(std::size_t bucket) const;
  /// Starts that for one bucket; those that are partial along tp go together.
  comm::Pending join(Exec& ex, std::size_t bucket) const;
  /// Whether a bucket of layers is still to come that takes its time: what tp holds are vectors.
  bool has_layers_left() const;

  const ParamBuffer& params_;
  comm::Group data_;
  std::optional<comm::Group> partial_;  ///< over which partial_grads() are summed
  std::vector<Progress> progress_;      // of each bucket
};

}  // namespace megalith::optim
