#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/tensor/param.h"

namespace megalith::model {

/// Sums a rank's gradients over the ranks that hold the same parameters: over dp all of them, over tp first those that
/// have seen a share of the rows only. Under sequence parallelism these are the gains and shifts of the layer norms:
/// all other parameters meet rows that have been gathered (the biases of row-parallel layers and the position table
/// too). They are one flat range, summed over tp by one call when the last backward is over, since they are small.
///
/// Over dp gradients go in buckets: flat
/// ranges of whole parameters, sent as soon as the step's last backward has passed their layers, so that on GPUs most
/// of the sum runs beside the rest of that backward. Every rank of the group makes the same calls in the same order.
/// Elements are summed one by one, so on CPU transports the buckets change no bits. Communicates 2 (n-1)/n of the
/// gradients per step over dp, and of the partial ones over tp.
class GradReducer {
 public:
  /// A bucket is closed by the layer with which it reaches `bucket_bytes`.
  GradReducer(const ParamBuffer& params, comm::Group tp, comm::Group dp, Index bucket_bytes);

  /// A new step: nothing is summed yet.
  void begin();
  /// No later pass of the step adds to the gradients of this layer, [0, number of layers of the model).
  void layer_done(Exec& ex, Index layer);
  /// Sums the partial gradients over tp, sends what has not gone, and holds the Exec until all sums have arrived.
  void finish(Exec& ex);

  /// What is summed by one call: elements [begin, end) of the flat buffer. Buckets cover it and do not overlap.
  struct Bucket {
    Index begin = 0, end = 0;
    std::vector<Index> layers = {};  ///< that it waits for; none: it has parameters outside the layers or partial ones
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  /// How far a bucket has come in this step.
  struct Progress {
    std::size_t layers_done = 0;
    bool sent = false;
    comm::Pending sum;
  };
  void send(Exec& ex, std::size_t bucket);

  const ParamBuffer& params_;
  comm::Group tp_, dp_;
  std::vector<Bucket> buckets_;
  std::vector<Progress> progress_;  // of each bucket
};

}  // namespace megalith::model
