#pragma once
#include <cstddef>
#include <deque>

#include "megalith/optim/grad_reducer.h"
#include "megalith/optim/param_gatherer.h"
#include "megalith/params/param_set.h"

namespace megalith::optim {

/// The exchange, in a step, between the ranks that hold the same parameters. For each buffer that gradients update
/// there is a reducer of gradients and, if the optimizer is sharded, a gatherer of values. Every rank of a group makes
/// the same calls in the same order.
class ParamExchange {
 public:
  ParamExchange(const ParamSet& params, const comm::Mesh& mesh);

  /// A new step: nothing is summed, and other ranks' shards of the values are out of date.
  void begin();

  /// As ParamGatherer, over all buffers.
  void start(Exec& ex, Index layer);
  void layer_needed(Exec& ex, Index layer);
  void gather_all(Exec& ex);

  /// As GradReducer, over all buffers.
  void begin_pass(GradReducer::Pass pass);
  void layer_begins(Exec& ex, Index layer);
  void layer_done(Exec& ex, Index layer);
  void send_rest(Exec& ex);
  /// The Exec waits until the sums of a bucket of a buffer of ParamSet::buffers() have arrived.
  void wait(Exec& ex, std::size_t buffer, std::size_t bucket) { reducers_[buffer].wait(ex, bucket); }

 private:
  std::deque<GradReducer> reducers_;  // of the first buffers; buffers that rules update come after them
  std::deque<ParamGatherer> gatherers_;
};

}  // namespace megalith::optim
