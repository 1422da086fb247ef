#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/tensor/param.h"

namespace megalith::model {

/// Sums a rank's gradients over the ranks that hold the same parameters (data parallelism). They go bucket by bucket,
/// each as soon as the step's last backward has passed its layers, so that on GPUs most of the sum runs beside the rest
/// of that backward: a reduce-scatter leaves every rank the sum of its shard of the bucket, and an all-gather brings it
/// the others' unless the optimizer is sharded, which needs its own only; the rest of the bucket is then undefined. The
/// two ways take the same sums. Every rank of the group makes the same calls in the same order. Elements are summed one
/// by one, so on CPU transports the buckets change no bits. Communicates (n-1)/n of the gradients per step, or twice
/// that.
class GradReducer {
 public:
  /// `dp` has a rank for each shard of `params`.
  GradReducer(const ParamBuffer& params, comm::Group dp);

  /// A new step: nothing is summed yet.
  void begin();
  /// No later pass of the step adds to the gradients of this layer, [0, number of layers of the model).
  void layer_done(Exec& ex, Index layer);
  /// Sends what has not gone, and holds the Exec until all sums have arrived.
  void finish(Exec& ex);

 private:
  /// How far a bucket has come in this step.
  struct Progress {
    std::size_t layers_done = 0;
    bool sent = false;
    comm::Pending sum, shards;
  };
  void send(Exec& ex, std::size_t bucket);

  const ParamBuffer& params_;
  comm::Group dp_;
  std::vector<Progress> progress_;  // of each bucket
};

}  // namespace megalith::model
