#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/tensor/param.h"

namespace megalith::model {

/// Sums a rank's gradients over the ranks that hold the same parameters: over dp all of them, over tp before that those
/// that have seen a share of the rows only. Under sequence parallelism these are the gains and shifts of the layer
/// norms: all other parameters meet rows that have been gathered, the biases of row-parallel layers and the position
/// table too. They are few and go over tp by one call when the last backward is over.
///
/// Over dp gradients go bucket by bucket, each as soon as the step's last backward has passed its layers, so that on
/// GPUs most of the sum runs beside the rest of that backward (comm::Haste; little is left beside the last layers'
/// bucket): a reduce-scatter leaves every rank the sum of its shard of the bucket, and an all-gather brings it the
/// others' unless the optimizer is sharded, which needs its own only; the rest of the bucket is then undefined. The two
/// ways take the same sums. Every rank of the group makes the same calls in the same order. Elements are summed one by
/// one, so on CPU transports the buckets change no bits. Communicates (n-1)/n of the gradients per step, or twice that,
/// and over tp twice that of the partial ones.
class GradReducer {
 public:
  /// `dp` has a rank for each shard of `params`.
  GradReducer(const ParamBuffer& params, comm::Group tp, comm::Group dp);

  /// A new step: nothing is summed yet.
  void begin();
  /// No later pass of the step adds to the gradients of this layer, [0, number of layers of the model).
  void layer_done(Exec& ex, Index layer);
  /// Sums the partial gradients over tp and sends what has not gone.
  void send_rest(Exec& ex);
  /// Holds the Exec until the sums of a bucket of ParamBuffer::buckets() have arrived. Throws InternalError when it has
  /// not been sent.
  void wait(Exec& ex, std::size_t bucket);

 private:
  /// How far a bucket has come in this step.
  struct Progress {
    std::size_t layers_done = 0;
    bool sent = false;
    comm::Pending sum, shards;
  };
  void send(Exec& ex, std::size_t bucket);
  /// Whether a bucket of layers is still to come.
  bool has_layers_left() const;

  const ParamBuffer& params_;
  comm::Group tp_, dp_;
  std::vector<Progress> progress_;  // of each bucket
};

}  // namespace megalith::model
