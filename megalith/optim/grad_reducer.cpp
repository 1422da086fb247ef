#include "megalith/optim/grad_reducer.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/elementwise.h"

namespace megalith::optim {
namespace {

constexpr int kOwner = 0;  // in a group of replicas

}  // namespace

GradReducer::GradReducer(const ParamBuffer& params, const comm::Mesh& mesh)
    : params_(params), data_(mesh.reduction_group({.grid = params.grid()})), progress_(params.buckets().size()) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const grid::Placement& placement = params.buckets()[b].placement;
    if (const comm::Group* const replicas = mesh.replica_group(placement)) progress_[b].replicas = *replicas;
    if (grid::is_partial_along_tp(placement)) partial_ = progress_[b].replicas;
  }
}

void GradReducer::begin() {
  for (Progress& progress : progress_) {
    progress.layers_done = 0;
    progress.sent = progress.in_pass = progress.is_unsettled = false;
    progress.passes = 0;
  }
  in_window_ = {};
}

void GradReducer::layer_begins(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    if (bucket.has_window() && bucket.layers.front() == layer && !progress_[b].in_pass) take_window(ex, b);
  }
}

void GradReducer::take_window(Exec& ex, std::size_t b) {
  std::optional<std::size_t>& holder = in_window_.at(static_cast<std::size_t>(params_.buckets()[b].window));
  if (holder) {
    if (progress_[*holder].in_pass)
      throw InternalError(str("[GradReducer] bucket ", b, ": bucket ", *holder, " still has its window"));
    settle(ex, *holder);
  }
  holder = b;
  progress_[b].in_pass = true;
  for (const Tensor& gap : params_.window_gaps(b)) ops::fill(ex, gap, 0);
}

void GradReducer::send_window(Exec& ex, std::size_t b) {
  Progress& progress = progress_[b];
  const Bucket& bucket = params_.buckets()[b];
  if (!progress.in_pass) throw InternalError(str("[GradReducer] bucket ", b, ": done, but its layer has not begun"));
  progress.in_pass = false;
  progress.sent = pass_ == Pass::last;
  progress.priority = has_layers_left() ? comm::Priority::beside_work : comm::Priority::alone;
  const bool is_first = progress.passes++ == 0;
  progress.sum = comm::reduce_scatter(ex, data_, params_.grads_of(bucket),
                                      is_first ? params_.own_grads(bucket) : params_.own_shard_of_grads(bucket),
                                      comm::Reduce::sum, progress.priority);
  progress.is_unsettled = true;
}

void GradReducer::settle(Exec& ex, std::size_t b) {
  Progress& progress = progress_[b];
  progress.sum.wait(ex);
  if (!std::exchange(progress.is_unsettled, false) || progress.passes == 1) return;
  const Bucket& bucket = params_.buckets()[b];
  const Tensor sums = params_.own_grads(bucket);
  ops::add(ex, sums, params_.own_shard_of_grads(bucket), sums);
}

void GradReducer::layer_done(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    const std::vector<Index>& layers = bucket.layers;
    if (grid::is_partial_along_tp(bucket.placement) || std::ranges::find(layers, layer) == layers.end()) continue;
    if (bucket.has_window()) {
      send_window(ex, b);
      continue;
    }
    if (pass_ != Pass::last) continue;
    if (progress_[b].sent) throw InternalError(str("[GradReducer] layer ", layer, ": done a second time in one step"));
    if (++progress_[b].layers_done == layers.size()) send(ex, b);
  }
}

bool GradReducer::has_layers_left() const {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    if (!progress_[b].sent && !progress_[b].replicas && !bucket.layers.empty()) return true;
  }
  return false;
}

void GradReducer::send(Exec& ex, std::size_t b) {
  Progress& progress = progress_[b];
  const Bucket& bucket = params_.buckets()[b];
  progress.sent = true;
  if (data_.size() == 1) return;
  progress.priority = has_layers_left() ? comm::Priority::beside_work : comm::Priority::alone;
  progress.sum = comm::reduce_scatter(ex, data_, params_.part(params_.grads(), bucket),
                                      params_.own_shard(params_.grads(), bucket), comm::Reduce::sum, progress.priority);
  if (!is_joined(b)) gather(ex, b);
}

void GradReducer::gather(Exec& ex, std::size_t b) {
  if (params_.is_sharded() || data_.size() == 1) return;
  const Bucket& bucket = params_.buckets()[b];
  progress_[b].shards = comm::all_gather(ex, data_, params_.own_shard(params_.grads(), bucket),
                                         params_.part(params_.grads(), bucket), progress_[b].priority);
}

bool GradReducer::is_joined(std::size_t b) const {
  if (!progress_[b].replicas) return false;
  if (grid::is_partial_in_copy(params_.buckets()[b].placement)) return true;
  return data_.size() > 2 && !data_.channel().sums_in_rank_order();
}

comm::Pending GradReducer::join(Exec& ex, std::size_t b) const {
  const Bucket& bucket = params_.buckets()[b];
  const Tensor own = params_.own_shard(params_.grads(), bucket);
  const comm::Group& replicas = *progress_[b].replicas;
  if (grid::is_partial_in_copy(bucket.placement))
    return comm::all_reduce(ex, replicas, own, comm::Reduce::sum, comm::Priority::alone);
  return comm::broadcast(ex, replicas, own, kOwner);
}

void GradReducer::send_rest(Exec& ex) {
  const auto for_joined = [&](const auto& f) {
    for (std::size_t b = 0; b < progress_.size(); ++b) {
      if (is_joined(b)) f(b);
    }
  };
  const auto send_left = [&](std::size_t b) {
    Progress& progress = progress_[b];
    if (progress.sent) return;
    if (!has_window(b)) return send(ex, b);
    if (progress.passes == 0) {  // a warm-up, without passes or with too few of them
      take_window(ex, b);
      send_window(ex, b);
    }
    progress.sent = true;
  };
  for_joined(send_left);  // first: they are awaited here
  for (std::size_t b = 0; b < progress_.size(); ++b) send_left(b);
  for_joined([&](std::size_t b) { progress_[b].sum.wait(ex); });
  comm::Pending partial;
  if (const Tensor grads = params_.partial_grads(); grads.numel() > 0)
    partial = comm::all_reduce(ex, *partial_, grads, comm::Reduce::sum);
  for_joined([&](std::size_t b) {
    if (!grid::is_partial_along_tp(params_.buckets()[b].placement)) progress_[b].join = join(ex, b);
  });
  partial.wait(ex);
  for_joined([&](std::size_t b) {
    progress_[b].join.wait(ex);
    gather(ex, b);
  });
}

void GradReducer::wait(Exec& ex, std::size_t bucket) {
  if (!progress_[bucket].sent) throw InternalError(str("[GradReducer] bucket ", bucket, ": has not been sent"));
  if (has_window(bucket)) return settle(ex, bucket);
  progress_[bucket].sum.wait(ex);
  progress_[bucket].shards.wait(ex);
}

}  // namespace megalith::optim
