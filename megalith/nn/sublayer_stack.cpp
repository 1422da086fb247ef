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

SublayerStack::SublayerStack(const TensorParallel& tp, std::vector<Entry> entries, const RecomputeConfig& recompute)
    : tp_(tp) {
  std::vector<StageCounts> counts;
  std::optional<Seam::Addend> before;
  for (Entry& entry : entries) {
    const Sublayer& sublayer = *entry.sublayer;
    counts.push_back({entry.layer, entry.captured, sublayer.num_forward_stages(), sublayer.num_backward_stages()});
    seams_.emplace_back(tp_, before, entry.norm);
    before = {sublayer.out_bias(), entry.dropout};
    layers_.push_back(entry.layer);
    sublayers_.push_back(std::move(entry.sublayer));
  }
  seams_.emplace_back(tp_, before, std::nullopt);
  again_ = {recomputed_ranges(recompute), recompute.again(RecomputeModule::norms)};
  segments_ = make_segments(counts, {tp_.sub_batches(), tp_.is_sequence_parallel()}, again_);
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
  Saved saved{empty(), empty(), std::vector<GradWithBias>(seams_.size())};
  for (std::size_t k = 0; k < sublayers_.size(); ++k) saved.first.sublayers[k] = sublayers_[k]->make_saved();
  for (const RecomputedRange& range : again_.ranges) {
    for (std::size_t k = range.begin; k < range.end; ++k) saved.again.sublayers[k] = sublayers_[k]->make_saved();
  }
  return saved;
}

void SublayerStack::Saved::take_host_memory(Device device) {
  for (Pass* const pass : {&first, &again}) {
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
    const Index layer = layers_[segment.begin];
    if (events != nullptr && segment.captured && begins_layer(segment.begin)) events->layer_needed(ex, layer);
    ex.set_layer(layer);
    run_segment(ex, segment, layer, GraphCache::Key::kForward, graphs, [&] {
      run_forward(ex, microbatch, segment.forward, output, saved.first, segment.captured ? nullptr : events);
    });
  }
  return saved.first.seams.back().x;
}

void SublayerStack::run_forward(Exec& ex, const Microbatch& microbatch, std::span<const Turn> turns,
                                const Tensor& output, Pass& pass, LayerEvents* events,
                                std::optional<std::size_t> again_from) const {
  std::array<InFlight, kMaxSubBatches> in_flight;  // of each part
  Microbatch sub_batch = microbatch;
  for (const auto [k, stage, index] : turns) {
    InFlight& message = in_flight[static_cast<std::size_t>(index)];
    sub_batch.sub_batch = {index, tp_.sub_batches()};
    sub_batch.pass = again_from ? ForwardPass::again : ForwardPass::first;
    message.wait(ex);
    const bool closing = k == sublayers_.size(), first = stage == 0 && index == 0;
    if (!closing) {
      if (events != nullptr && first && begins_layer(k)) events->layer_needed(ex, layers_[k]);
      ex.set_layer(layers_[k]);
    }
    if (stage == 0 && again_from == k) {
      seams_[k].norm_again(ex, sub_batch, pass.seams[k]);
    } else if (stage == 0) {
      if (first && k > 0) pass.seams[k].x = closing && output ? output : ex.tensor_like(pass.seams[k - 1].x);
      run_seam(ex, sub_batch, k, pass);
    }
    if (!closing) message = sublayers_[k]->forward(ex, sub_batch, stage, pass.seams[k].y, *pass.sublayers[k]);
  }
  for (InFlight& message : in_flight) message.wait(ex);
}

void SublayerStack::run_seam(Exec& ex, const Microbatch& microbatch, std::size_t k, Pass& pass) const {
  if (k == 0) return seams_[k].forward(ex, microbatch, {}, {}, pass.seams[k]);
  seams_[k].forward(ex, microbatch, sublayers_[k - 1]->output(*pass.sublayers[k - 1]), pass.seams[k - 1].x,
                    pass.seams[k]);
}

void SublayerStack::compute_again(Exec& ex, const Microbatch& microbatch, const Turn& turn, Saved& saved) const {
  const std::size_t k = turn.sublayer;
  if (turn.stage == kNormAgain) {
    seams_[k].norm_again(ex, microbatch, saved.first.seams[k]);
    sublayers_[k]->set_input(saved.first.seams[k].y, *saved.first.sublayers[k]);
    return;
  }
  const auto range = std::ranges::find(again_.ranges, k + 1, &RecomputedRange::end);
  saved.again.seams[range->begin].x = saved.first.seams[range->begin].x;
  run_forward(ex, microbatch, range->forward, {}, saved.again, nullptr, range->begin);
  ex.set_layer(layers_[k]);
}

Tensor SublayerStack::backward(Exec& ex, const Microbatch& microbatch, const GradWithBias& dy, const Tensor& dx,
                               Saved& saved, LayerEvents* events, const SegmentGraphs& graphs) const {
  saved.grads.back() = dy;
  for (std::size_t i = segments_.size(); i-- > 0;) {
    const Segment& segment = segments_[i];
    const Index layer = layers_[segment.begin];
    ex.set_layer(layer);
    run_segment(ex, segment, layer, GraphCache::Key::kBackward, graphs,
                [&] { run_backward(ex, microbatch, segment, dx, saved, segment.captured ? nullptr : events); });
    if (events != nullptr && segment.captured && begins_layer(segment.begin)) events->layer_done(ex, layer);
  }
  return saved.grads.front().grad;
}

void SublayerStack::run_backward(Exec& ex, const Microbatch& microbatch, const Segment& segment, const Tensor& dx,
                                 Saved& saved, LayerEvents* events) const {
  Tensor d_normed;  // of what the sublayer in hand has read
  for (const auto [k, stage, sub_batch] : segment.backward) {
    const Sublayer& sublayer = *sublayers_[k];
    const int last = sublayer.num_backward_stages() - 1;
    const GradWithBias& after = saved.grads[k + 1];
    ex.set_layer(layers_[k]);
    if (stage < 0) {
      compute_again(ex, microbatch, {k, stage}, saved);
      continue;
    }
    const Pass& kept = saved.of_backward(k);
    Sublayer::Gradients grads;
    if (stage == 0) grads.dy = seams_[k + 1].addend_grad(ex, microbatch, after);
    if (stage == 1) d_normed = ex.tensor_like(after.grad);
    if (stage > 0 && stage < last) grads.dx = d_normed;
    sublayer.backward(ex, microbatch, stage, grads, *kept.sublayers[k]);
    if (stage + 1 == last) {
      GradWithBias& before = saved.grads[k];
      before = {k == 0 && dx ? dx : ex.tensor_like(after.grad), seams_[k].bias_grad()};
      seams_[k].backward(ex, d_normed, after.grad, kept.seams[k], before);
    }
    if (events != nullptr && stage == last && begins_layer(k)) events->layer_done(ex, layers_[k]);
  }
}

}  // namespace megalith::nn
