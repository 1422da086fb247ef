#include "megalith/model/grad_reducer.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::model {

GradReducer::GradReducer(const ParamBuffer& params, comm::Group tp, comm::Group dp)
    : params_(params), tp_(std::move(tp)), dp_(std::move(dp)), progress_(params.buckets().size()) {}

void GradReducer::begin() {
  for (Progress& progress : progress_) {
    progress.layers_done = 0;
    progress.sent = false;
  }
}

void GradReducer::layer_done(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    const std::vector<Index>& layers = bucket.layers;
    if (bucket.grad_rows == GradRows::some || std::ranges::find(layers, layer) == layers.end()) continue;
    if (progress_[b].sent) throw InternalError(str("[GradReducer] layer ", layer, ": done a second time in one step"));
    if (++progress_[b].layers_done == layers.size()) send(ex, b);
  }
}

bool GradReducer::has_layers_left() const {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    if (!progress_[b].sent && bucket.grad_rows == GradRows::all && !bucket.layers.empty()) return true;
  }
  return false;
}

void GradReducer::send(Exec& ex, std::size_t b) {
  Progress& progress = progress_[b];
  progress.sent = true;
  if (dp_.size() == 1) return;
  const comm::Haste haste = has_layers_left() ? comm::Haste::beside_work : comm::Haste::alone;
  const Tensor grads = params_.part(params_.grads(), params_.buckets()[b]);
  const Tensor own = params_.own_shard(params_.grads(), params_.buckets()[b]);
  progress.sum = comm::reduce_scatter(ex, dp_, grads, own, comm::Reduce::sum, haste);
  if (!params_.is_sharded()) progress.shards = comm::all_gather(ex, dp_, own, grads, haste);
}

void GradReducer::send_rest(Exec& ex) {
  const Tensor partial = params_.partial_grads();
  if (partial.numel() > 0) comm::all_reduce(ex, tp_, partial, comm::Reduce::sum).wait(ex);
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    if (!progress_[b].sent) send(ex, b);
  }
}

void GradReducer::wait(Exec& ex, std::size_t bucket) {
  if (!progress_[bucket].sent) throw InternalError(str("[GradReducer] bucket ", bucket, ": has not been sent"));
  progress_[bucket].sum.wait(ex);
  progress_[bucket].shards.wait(ex);
}

}  // namespace megalith::model
