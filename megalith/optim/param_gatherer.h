#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// Gathers the values that the other ranks of a sharded optimizer have updated, bucket by bucket. The all-gathers start
/// when a step begins, in the order in which forward reads the values. A layer waits only for its own buckets, so on
/// GPUs the others arrive during the forward pass. Every rank of the group makes the same calls in the same order.
/// Communicates (n-1)/n of the values per step. Takes no memory: shards are read and written in place.
class ParamGatherer {
 public:
  /// `data` has one rank per shard of `params`.
  ParamGatherer(const ParamBuffer& params, comm::Group data);

  /// A new step: the other ranks' shards are out of date.
  void begin();
  /// Starts to gather the values that this layer reads, unless they are in flight: [0, number of layers of the model),
  /// or kOutsideLayers.
  void start(Exec& ex, Index layer);
  /// The Exec waits until they have arrived. Throws InternalError if they were not started in this step.
  void layer_needed(Exec& ex, Index layer);

  /// Gathers everything. The Exec waits until it has arrived: for readers of values between steps.
  void gather_all(Exec& ex);

 private:
  struct Progress {
    bool started = false;
    comm::Pending values;
  };
  void send(Exec& ex, std::size_t bucket);

  const ParamBuffer& params_;
  comm::Group data_;
  std::vector<Progress> progress_;  // of each bucket
};

}  // namespace megalith::optim
