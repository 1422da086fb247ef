#include "megalith/optim/param_gatherer.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::optim {
namespace {

bool holds(const Bucket& bucket, Index layer) {
  if (layer == kOutsideLayers) return bucket.layers.empty();
  return std::ranges::find(bucket.layers, layer) != bucket.layers.end();
}

}  // namespace

ParamGatherer::ParamGatherer(const ParamBuffer& params, comm::Group data)
    : params_(params), data_(std::move(data)), progress_(params.buckets().size()) {}

void ParamGatherer::begin() {
  for (Progress& progress : progress_) progress.started = false;
}

void ParamGatherer::start(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    if (!progress_[b].started && holds(params_.buckets()[b], layer)) send(ex, b);
  }
}

void ParamGatherer::send(Exec& ex, std::size_t b) {
  const Bucket& bucket = params_.buckets()[b];
  progress_[b].started = true;
  progress_[b].values =
      comm::all_gather(ex, data_, params_.own_shard(params_.values(), bucket), params_.part(params_.values(), bucket));
}

void ParamGatherer::layer_needed(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < progress_.size(); ++b) {
    if (!holds(params_.buckets()[b], layer)) continue;
    if (!progress_[b].started)
      throw InternalError(str("[ParamGatherer] layer ", layer, ": read before its values were gathered"));
    progress_[b].values.wait(ex);
  }
}

void ParamGatherer::gather_all(Exec& ex) {
  for (std::size_t b = 0; b < progress_.size(); ++b) send(ex, b);
  for (Progress& progress : progress_) progress.values.wait(ex);
}

}  // namespace megalith::optim
