#include "megalith/model/grad_reducer.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::model {
namespace {

/// Backward finishes layers from the last to the first, which is the flat buffer from its end: so buckets are made from
/// there. A bucket ends where it is large enough, where layers stop or begin, and where their numbers jump up (the
/// buffer holds the layers' matrices and, apart from them, their vectors). Partial gradients belong to no layer.
std::vector<GradReducer::Bucket> make_buckets(const ParamBuffer& params, Index bucket_elements) {
  std::vector<GradReducer::Bucket> buckets;
  Index end = params.numel(), layer_above = -1;
  for (std::size_t i = params.params().size(); i-- > 0;) {
    const Param& param = params.params()[i];
    const Index layer = param.spec.grad_rows == GradRows::some ? -1 : param.spec.layer;
    const bool full = !buckets.empty() && buckets.back().end - buckets.back().begin >= bucket_elements;
    const bool continues = layer >= 0 && layer <= layer_above && !(full && layer < layer_above);
    const bool outside = layer < 0 && layer_above < 0 && !buckets.empty();
    if (!continues && !outside) buckets.push_back({param.offset, end});
    GradReducer::Bucket& bucket = buckets.back();
    bucket.begin = end = param.offset;
    if (layer >= 0 && (bucket.layers.empty() || bucket.layers.back() != layer)) bucket.layers.push_back(layer);
    layer_above = layer;
  }
  return buckets;
}

}  // namespace

GradReducer::GradReducer(const ParamBuffer& params, comm::Group tp, comm::Group dp, Index bucket_bytes)
    : params_(params),
      tp_(std::move(tp)),
      dp_(std::move(dp)),
      buckets_(make_buckets(params, bucket_bytes / size_of(params.policy().master))),
      progress_(buckets_.size()) {}

void GradReducer::begin() {
  for (Progress& progress : progress_) {
    progress.layers_done = 0;
    progress.sent = false;
  }
}

void GradReducer::layer_done(Exec& ex, Index layer) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::vector<Index>& layers = buckets_[b].layers;
    if (std::ranges::find(layers, layer) == layers.end()) continue;
    if (progress_[b].sent) throw InternalError(str("[GradReducer] layer ", layer, ": done a second time in one step"));
    if (++progress_[b].layers_done == layers.size()) send(ex, b);
  }
}

void GradReducer::send(Exec& ex, std::size_t b) {
  const Bucket& bucket = buckets_[b];
  progress_[b].sent = true;
  progress_[b].sum =
      comm::all_reduce(ex, dp_, params_.grads().rows(bucket.begin, bucket.end - bucket.begin), comm::Reduce::sum);
}

void GradReducer::finish(Exec& ex) {
  const Tensor partial = params_.partial_grads();
  if (partial.numel() > 0) comm::all_reduce(ex, tp_, partial, comm::Reduce::sum).wait(ex);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!progress_[b].sent) send(ex, b);
  }
  for (Progress& progress : progress_) progress.sum.wait(ex);
}

}  // namespace megalith::model
