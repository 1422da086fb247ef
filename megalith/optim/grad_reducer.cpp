#include "megalith/optim/grad_reducer.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::optim {
namespace {

constexpr int kOwner = 0;  // in tp, of what it holds alike

bool is_partial_along_tp(const Bucket& bucket) { return bucket.placement.partial.has(grid::Axis::tp); }
bool is_tied(const Bucket& bucket) { return bucket.placement.partial.has(grid::Axis::pp); }
bool is_replicated(const Bucket& bucket) { return grid::replica_group(bucket.placement).has_value(); }

}  // namespace

GradReducer::GradReducer(const ParamBuffer& params, const comm::Mesh& mesh)
    : params_(params),
      data_(mesh.reduction_group({.grid = params.grid()})),
      tp_(params.grid() == grid::GridKind::dense ? mesh.tp : mesh.etp),
      embd_(mesh.embd),
      progress_(params.buckets().size()) {}

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
    if (is_partial_along_tp(bucket) || std::ranges::find(layers, layer) == layers.end()) continue;
    if (progress_[b].sent) throw InternalError(str("[GradReducer] layer ", layer, ": done a second time in one step"));
    if (++progress_[b].layers_done == layers.size()) send(ex, b);
  }
}

bool GradReducer::has_layers_left() const {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    if (!progress_[b].sent && !is_replicated(bucket) && !bucket.layers.empty()) return true;
  }
  return false;
}

void GradReducer::send(Exec& ex, std::size_t b) {
  Progress& progress = progress_[b];
  const Bucket& bucket = params_.buckets()[b];
  progress.sent = true;
  if (data_.size() == 1) return;
  progress.haste = has_layers_left() ? comm::Haste::beside_work : comm::Haste::alone;
  progress.sum = comm::reduce_scatter(ex, data_, params_.part(params_.grads(), bucket),
                                      params_.own_shard(params_.grads(), bucket), comm::Reduce::sum, progress.haste);
  if (!is_joined(bucket)) gather(ex, b);
}

void GradReducer::gather(Exec& ex, std::size_t b) {
  if (params_.is_sharded() || data_.size() == 1) return;
  const Bucket& bucket = params_.buckets()[b];
  progress_[b].shards = comm::all_gather(ex, data_, params_.own_shard(params_.grads(), bucket),
                                         params_.part(params_.grads(), bucket), progress_[b].haste);
}

bool GradReducer::is_joined(const Bucket& bucket) const {
  if (!is_replicated(bucket)) return false;
  if (is_tied(bucket) || is_partial_along_tp(bucket)) return true;
  return data_.size() > 2 && !data_.channel().sums_in_rank_order();
}

comm::Pending GradReducer::join(Exec& ex, const Bucket& bucket) const {
  const Tensor own = params_.own_shard(params_.grads(), bucket);
  if (is_tied(bucket)) return comm::all_reduce(ex, embd_, own, comm::Reduce::sum, comm::Haste::alone);
  return comm::broadcast(ex, tp_, own, kOwner);
}

void GradReducer::send_rest(Exec& ex) {
  const auto for_joined = [&](const auto& f) {
    for (std::size_t b = 0; b < progress_.size(); ++b) {
      if (is_joined(params_.buckets()[b])) f(b);
    }
  };
  const auto send_left = [&](std::size_t b) {
    if (!progress_[b].sent) send(ex, b);
  };
  for_joined(send_left);  // first: they are awaited here
  for (std::size_t b = 0; b < progress_.size(); ++b) send_left(b);
  for_joined([&](std::size_t b) { progress_[b].sum.wait(ex); });
  comm::Pending partial;
  if (const Tensor grads = params_.partial_grads(); grads.numel() > 0)
    partial = comm::all_reduce(ex, tp_, grads, comm::Reduce::sum);
  for_joined([&](std::size_t b) {
    const Bucket& bucket = params_.buckets()[b];
    if (!is_partial_along_tp(bucket)) progress_[b].join = join(ex, bucket);
  });
  partial.wait(ex);
  for_joined([&](std::size_t b) {
    progress_[b].join.wait(ex);
    gather(ex, b);
  });
}

void GradReducer::wait(Exec& ex, std::size_t bucket) {
  if (!progress_[bucket].sent) throw InternalError(str("[GradReducer] bucket ", bucket, ": has not been sent"));
  progress_[bucket].sum.wait(ex);
  progress_[bucket].shards.wait(ex);
}

}  // namespace megalith::optim
