#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// Brings every rank the values that the other ranks of a sharded optimizer have updated. They come bucket by bucket,
/// by all-gathers that are started when a step begins, in the order in which forward reads them; a layer waits for its
/// own buckets only, so that on GPUs the others arrive beside the forward pass. Every rank of the group makes the same
/// calls in the same order. Communicates (n-1)/n of the values per step, and takes no memory: shards go from and to
/// their places.
class ParamGatherer {
 public:
  /// `data` has a rank for each shard of `params`.
  ParamGatherer(const ParamBuffer& params, comm::Group data);

  /// A new step: the other ranks' shards are out of date.
  void begin();
  /// Starts to bring what this layer reads, unless it is on its way: [0, number of layers of the model), or
  /// kOutsideLayers.
  void start(Exec& ex, Index layer);
  /// Holds the Exec until that has arrived. Throws InternalError when it was not started in this step.
  void layer_needed(Exec& ex, Index layer);

  /// Brings everything, and holds the Exec until it has arrived: for whoever reads values between steps.
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
