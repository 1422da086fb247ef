#include "megalith/nn/sublayer_stack.h"

#include <algorithm>
#include <array>

namespace megalith::nn {
namespace {

/// Runs `ops` from the segment's graph, where it has one.
template <class Ops>
void run_segment(Exec& ex, const Segment& segment, Index layer, int pass, const SegmentGraphs& graphs, Ops&& ops) {
  if (!segment.captured || graphs.cache == nullptr) return ops();
  graphs.cache->run(ex, {graphs.chunk, graphs.instance, layer, pass}, ops);
}

}  // namespace

SublayerStack::SublayerStack(const TensorParallel& tp, std::vector<Entry> entries, const RecomputeConfig& recompute,
                             NormPlacement placement)
    : tp_(tp), placement_(placement) {
  std::vector<SublayerStages> stages;
  std::optional<Seam::Addend> before;
  std::optional<Norm> norm_before;  // post-norm: of the sublayer before
  for (Entry& entry : entries) {
    const Sublayer& sublayer = *entry.sublayer;
    stages.push_back({entry.layer, sublayer.forward_stages(), sublayer.backward_stages(), entry.captured_end});
    seams_.emplace_back(tp_, before, is_post() ? norm_before : entry.norm, placement);
    norm_before = entry.norm;
    before = {sublayer.out_bias(), entry.dropout};
    layers_.push_back(entry.layer);
    sublayers_.push_back(std::move(entry.sublayer));
  }
  seams_.emplace_back(tp_, before, is_post() ? norm_before : std::nullopt, placement);
  recomputation_ = {recomputed_ranges(recompute), recompute.has(RecomputeModule::norms)};
  segments_ =
      make_segments(stages, {tp_.sub_batches(), tp_.is_sequence_parallel(), tp_.group().size() > 1}, recomputation_);
}

std::vector<RecomputedRange> SublayerStack::recomputed_ranges(const RecomputeConfig& recompute) const {
  std::vector<RecomputedRange> ranges;
  if (recompute.mode != RecomputeMode::full) return ranges;
  Index layers = 0;  // begun so far
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    const bool uniform = recompute.method == RecomputeMethod::uniform;
    if (begins_layer(k)) {
      if (!uniform && layers == recompute.layers) break;
      if (!uniform || layers % recompute.layers == 0) ranges.push_back({k, k});
      ++layers;
    }
    ranges.back().end = k + 1;
  }
  return ranges;
}

SublayerStack::Saved SublayerStack::make_saved() const {
  const auto empty = [&] {
    return Pass{std::vector<Seam::Saved>(seams_.size()),
                std::vector<std::unique_ptr<Sublayer::Saved>>(sublayers_.size())};
  };
  Saved saved{empty(), empty(), std::vector<GradWithBias>(seams_.size()), std::vector<Tensor>(sublayers_.size())};
  for (std::size_t k = 0; k < sublayers_.size(); ++k) saved.first.sublayers[k] = sublayers_[k]->make_saved();
  for (const RecomputedRange& range : recomputation_.ranges) {
    for (std::size_t k = range.begin; k < range.end; ++k) {
      saved.recomputed.sublayers[k] = sublayers_[k]->make_saved();
      sublayers_[k]->set_first(*saved.first.sublayers[k], *saved.recomputed.sublayers[k]);
    }
  }
  return saved;
}

void SublayerStack::Saved::take_host_memory(Device device) {
  for (Pass* const pass : {&first, &recomputed}) {
    for (const std::unique_ptr<Sublayer::Saved>& one : pass->sublayers)
      if (one) one->take_host_memory(device);
  }
}

void SublayerStack::take_caches(const TakeKvCache& take, Saved& saved) const {
  for (std::size_t k = 0; k < sublayers_.size(); ++k) sublayers_[k]->take_cache(take, *saved.first.sublayers[k]);
}

Tensor SublayerStack::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& output,
                              Saved& saved, LayerEvents* events, const SegmentGraphs& graphs) const {
  saved.first.seams.front().x = x;
  for (const Segment& segment : segments_) {
    // A graph leaves out the host's part of its segment, so what it needs is awaited before.
    const Index layer = layers_[segment.begin.sublayer];
    if (events != nullptr && segment.captured && begins_layer(segment.begin)) events->layer_needed(ex, layer);
    ex.set_layer(layer);
    run_segment(ex, segment, layer, GraphCache::Key::kForward, graphs, [&] {
      run_forward(ex, microbatch, segment.forward, output, saved.first, segment.captured ? nullptr : events);
    });
  }
  return seams_.back().stream(saved.first.seams.back());
}

void SublayerStack::run_forward(Exec& ex, const Microbatch& microbatch, std::span<const ForwardTurn> turns,
                                const Tensor& output, Pass& pass, LayerEvents* events) const {
  std::array<InFlight, kMaxSubBatches> in_flight;  // of each sub-microbatch
  Microbatch sub_batch = microbatch;
  for (const auto [k, stage, index] : turns) {
    InFlight& message = in_flight[static_cast<std::size_t>(index)];
    sub_batch.sub_batch = {index, tp_.sub_batches()};
    message.wait(ex);
    const bool at_seam = stage == ForwardStage::seam || stage == ForwardStage::norm;
    if (k < sublayers_.size()) {
      if (events != nullptr && at_seam && index == 0 && begins_layer(k)) events->layer_needed(ex, layers_[k]);
      ex.set_layer(layers_[k]);
    }
    if (stage == ForwardStage::norm)
      seams_[k].recompute_norm(ex, sub_batch, pass.seams[k]);
    else if (stage == ForwardStage::seam)
      run_seam(ex, sub_batch, k, output, pass);
    else
      message = sublayers_[k]->forward(ex, sub_batch, stage, pass.seams[k].y, *pass.sublayers[k]);
  }
  for (InFlight& message : in_flight) message.wait(ex);
}

void SublayerStack::run_seam(Exec& ex, const Microbatch& microbatch, std::size_t k, const Tensor& output,
                             Pass& pass) const {
  if (k == 0) return seams_[k].forward(ex, microbatch, {}, {}, pass.seams[k]);
  const Tensor& residual = seams_[k - 1].stream(pass.seams[k - 1]);
  if (microbatch.sub_batch.index == 0) {
    const Tensor result = k == sublayers_.size() ? output : Tensor();
    pass.seams[k].x = result && !is_post() ? result : ex.tensor_like(residual);
    pass.seams[k].out = is_post() ? result : Tensor();
  }
  seams_[k].forward(ex, microbatch, sublayers_[k - 1]->output(*pass.sublayers[k - 1]), residual, pass.seams[k]);
}

void SublayerStack::recompute_norm(Exec& ex, const Microbatch& microbatch, std::size_t k, Saved& saved) const {
  seams_[k].recompute_norm(ex, microbatch, saved.first.seams[k]);
  sublayers_[k]->set_input(saved.first.seams[k].y, *saved.first.sublayers[k]);
}

void SublayerStack::recompute_range(Exec& ex, const Microbatch& microbatch, std::size_t last, Saved& saved) const {
  const auto range = std::ranges::find(recomputation_.ranges, last + 1, &RecomputedRange::end);
  saved.recomputed.seams[range->begin].x = saved.first.seams[range->begin].x;
  Microbatch repeated = microbatch;
  repeated.pass = ForwardPass::recompute;
  run_forward(ex, repeated, range->forward, {}, saved.recomputed, nullptr);
  ex.set_layer(layers_[last]);
}

Tensor SublayerStack::backward(Exec& ex, const Microbatch& microbatch, const GradWithBias& dy, const Tensor& dx,
                               Saved& saved, LayerEvents* events, const SegmentGraphs& graphs) const {
  saved.grads.back() = dy;
  if (is_post()) {
    saved.grads.back() = {ex.tensor_like(dy.grad), seams_.back().bias_grad()};
    ex.set_layer(layers_.back());
    seams_.back().backward_at_end(ex, dy.grad, saved.first.seams.back(), saved.grads.back());
  }
  for (std::size_t i = segments_.size(); i-- > 0;) {
    const Segment& segment = segments_[i];
    const Index layer = layers_[segment.begin.sublayer];
    if (events != nullptr && segment.captured) events->layer_begins(ex, layer);
    ex.set_layer(layer);
    run_segment(ex, segment, layer, GraphCache::Key::kBackward, graphs,
                [&] { run_backward(ex, microbatch, segment, dx, saved, segment.captured ? nullptr : events); });
    if (events != nullptr && segment.captured && begins_layer(segment.begin)) events->layer_done(ex, layer);
  }
  return saved.grads.front().grad;
}

void SublayerStack::run_backward(Exec& ex, const Microbatch& microbatch, const Segment& segment, const Tensor& dx,
                                 Saved& saved, LayerEvents* events) const {
  InFlight dx_sums;
  Index begun = kOutsideLayers;
  for (const auto [k, stage] : segment.backward) {
    if (events != nullptr && stage != BackwardStage::done && layers_[k] != begun)
      events->layer_begins(ex, begun = layers_[k]);
    ex.set_layer(layers_[k]);
    if (stage == BackwardStage::recompute_norm) {
      recompute_norm(ex, microbatch, k, saved);
    } else if (stage == BackwardStage::recompute_range) {
      recompute_range(ex, microbatch, k, saved);
    } else if (stage == BackwardStage::seam) {
      dx_sums.wait(ex);
      run_seam_backward(ex, k, dx, saved);
    } else if (stage == BackwardStage::done) {
      if (events != nullptr && begins_layer(k)) events->layer_done(ex, layers_[k]);
    } else {
      InFlight message = run_stage_backward(ex, microbatch, k, stage, saved);
      if (stage == BackwardStage::first_input_grad) dx_sums = std::move(message);
    }
  }
}

InFlight SublayerStack::run_stage_backward(Exec& ex, const Microbatch& microbatch, std::size_t k, BackwardStage stage,
                                           Saved& saved) const {
  const GradWithBias& after = saved.grads[k + 1];
  Tensor& dx = saved.d_normed[k];
  Sublayer::Saved& kept = *saved.of_backward(k).sublayers[k];
  if (stage == BackwardStage::gather) {
    dx = {};
    return sublayers_[k]->backward(ex, microbatch, stage, {seams_[k + 1].addend_grad(ex, microbatch, after), dx}, kept);
  }
  if (!dx) dx = ex.tensor_like(after.grad);  // by the first stage that may write it: memory is alive from then on
  return sublayers_[k]->backward(ex, microbatch, stage, {{}, dx}, kept);
}

void SublayerStack::run_seam_backward(Exec& ex, std::size_t k, const Tensor& dx, Saved& saved) const {
  const Tensor& after = saved.grads[k + 1].grad;
  saved.grads[k] = {k == 0 && dx ? dx : ex.tensor_like(after), seams_[k].bias_grad()};
  seams_[k].backward(ex, saved.d_normed[k], after, saved.of_backward(k).seams[k], saved.grads[k]);
}

}  // namespace megalith::nn
