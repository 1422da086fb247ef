#include "megalith/nn/sublayer_stack.h"

#include <array>

namespace megalith::nn {
namespace {

Tensor alike(Exec& ex, const Tensor& x) { return ex.tensor(x.shape(), x.dtype()); }

/// Runs `ops` from the segment's graph, where it has one.
template <class Ops>
void run_segment(Exec& ex, const Segment& segment, Index layer, int pass, const SegmentGraphs& graphs, Ops&& ops) {
  if (!segment.captured || graphs.cache == nullptr) return ops();
  graphs.cache->run(ex, {graphs.chunk, graphs.instance, layer, pass}, ops);
}

}  // namespace

SublayerStack::SublayerStack(const TensorParallel& tp, std::vector<Entry> entries) : tp_(tp) {
  std::vector<StageCounts> counts;
  std::optional<Seam::Addend> before;
  for (Entry& entry : entries) {
    const Sublayer& sublayer = *entry.sublayer;
    counts.push_back({entry.layer, entry.captured, sublayer.num_forward_stages(), sublayer.num_backward_stages()});
    seams_.emplace_back(tp_, before, entry.norm);
    before = {&sublayer.out_bias(), entry.dropout};
    layers_.push_back(entry.layer);
    sublayers_.push_back(std::move(entry.sublayer));
  }
  seams_.emplace_back(tp_, before, std::nullopt);
  segments_ = make_segments(counts, {tp_.parts(), tp_.shares_rows()});
}

SublayerStack::Saved SublayerStack::make_saved() const {
  Saved saved{std::vector<Seam::Saved>(seams_.size()), {}, std::vector<SummedGrad>(seams_.size())};
  for (const auto& sublayer : sublayers_) saved.sublayers.push_back(sublayer->make_saved());
  return saved;
}

Tensor SublayerStack::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& output,
                              Saved& saved, LayerEvents* events, const SegmentGraphs& graphs) const {
  saved.seams.front().x = x;
  for (const Segment& segment : segments_) {
    // A graph leaves out the host's part of its segment, so what it needs is awaited before.
    const Index layer = layers_[segment.begin];
    if (events != nullptr && segment.captured && begins_layer(segment.begin)) events->layer_needed(ex, layer);
    ex.set_layer(layer);
    run_segment(ex, segment, layer, GraphCache::Key::kForward, graphs,
                [&] { run_forward(ex, microbatch, segment, output, saved, segment.captured ? nullptr : events); });
  }
  return saved.seams.back().x;
}

void SublayerStack::run_forward(Exec& ex, const Microbatch& microbatch, const Segment& segment, const Tensor& output,
                                Saved& saved, LayerEvents* events) const {
  std::array<InFlight, kMostParts> in_flight;  // of each part
  Microbatch part = microbatch;
  for (const Turn& turn : segment.forward) {
    const auto [k, stage, index] = turn;
    InFlight& message = in_flight[static_cast<std::size_t>(index)];
    part.part = {index, tp_.parts()};
    message.wait(ex);
    const bool closing = k == sublayers_.size(), first = stage == 0 && index == 0;
    if (events != nullptr && first && !closing && begins_layer(k)) events->layer_needed(ex, layers_[k]);
    if (first && k > 0) saved.seams[k].x = closing && output ? output : alike(ex, saved.seams[k - 1].x);
    if (!closing) ex.set_layer(layers_[k]);
    message = run_turn(ex, part, turn, saved);
  }
  for (InFlight& message : in_flight) message.wait(ex);
}

InFlight SublayerStack::run_turn(Exec& ex, const Microbatch& microbatch, const Turn& turn, Saved& saved) const {
  const std::size_t k = turn.sublayer;
  Seam::Saved& stream = saved.seams[k];
  if (turn.stage == 0) {
    const bool first = k == 0;
    seams_[k].forward(ex, microbatch, first ? Tensor() : sublayers_[k - 1]->output(*saved.sublayers[k - 1]),
                      first ? Tensor() : saved.seams[k - 1].x, stream);
  }
  if (k == sublayers_.size()) return {};
  return sublayers_[k]->forward(ex, microbatch, turn.stage, stream.y, *saved.sublayers[k]);
}

Tensor SublayerStack::backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy, const Tensor& dx,
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
  for (const auto [k, stage, part] : segment.backward) {
    const Sublayer& sublayer = *sublayers_[k];
    const int last = sublayer.num_backward_stages() - 1;
    const SummedGrad& after = saved.grads[k + 1];
    ex.set_layer(layers_[k]);
    Sublayer::Gradients grads;
    if (stage == 0) grads.dy = seams_[k + 1].addend_grad(ex, microbatch, after);
    if (stage == 1) d_normed = alike(ex, after.grad);
    if (stage > 0 && stage < last) grads.dx = d_normed;
    sublayer.backward(ex, microbatch, stage, grads, *saved.sublayers[k]);
    if (stage + 1 == last) {
      SummedGrad& before = saved.grads[k];
      before = {k == 0 && dx ? dx : alike(ex, after.grad), seams_[k].bias_grad()};
      seams_[k].backward(ex, d_normed, after.grad, saved.seams[k], before);
    }
    if (events != nullptr && stage == last && begins_layer(k)) events->layer_done(ex, layers_[k]);
  }
}

}  // namespace megalith::nn
