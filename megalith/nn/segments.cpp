#include "megalith/nn/segments.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::nn {
namespace {

/// What a segment has of the work around its edges.
struct EdgeWork {
  bool takes_rest = false;   ///< begins with the last stage of the last sub-microbatch of the segment before it
  bool leaves_rest = false;  ///< leaves that stage of its own to the next segment
  bool closes = false;       ///< has the closing seam
  bool recomputes = false;   ///< begins with a norm in place of a seam, and has no last stage of the last sublayer
};

/// The number of stages of sublayer k that come before the edge.
std::size_t stages_before(std::span<const SublayerStages> sublayers, std::size_t k, const Edge& edge) {
  if (edge.sublayer < k || edge == Edge{k}) return 0;
  const std::span<const ForwardStage> stages = sublayers[k].forward;
  if (edge.sublayer > k) return stages.size();
  return static_cast<std::size_t>(std::ranges::find(stages, edge.stage) - stages.begin());
}

class ForwardOrder {
 public:
  ForwardOrder(std::span<const SublayerStages> sublayers, const Overlap& overlap, const Edge& begin, const Edge& end,
               const EdgeWork& work)
      : sublayers_(sublayers), overlap_(overlap), begin_(begin), end_(end), work_(work) {}

  std::vector<ForwardTurn> make() {
    const int last_sub_batch = overlap_.sub_batches - 1;
    if (work_.takes_rest)
      finish(begin_.sublayer - 1, last_sub_batch);
    else if (begin_.stage == ForwardStage::seam)
      start(begin_.sublayer, 0);
    for (std::size_t k = begin_.sublayer; k < sublayers_.size() && holds_some_of(k); ++k) {
      for (int sub_batch = 0; sub_batch < overlap_.sub_batches; ++sub_batch) {
        middle(k, sub_batch);
        const bool rest_is_left = work_.leaves_rest && k + 1 == end_.sublayer && sub_batch == last_sub_batch;
        if (holds_end_of(k) && !rest_is_left) finish(k, sub_batch);
      }
    }
    for (int sub_batch = 1; sub_batch < overlap_.sub_batches; ++sub_batch) {
      if (work_.closes) start(end_.sublayer, sub_batch);
    }
    return std::move(turns_);
  }

 private:
  bool holds_end_of(std::size_t k) const { return k < end_.sublayer; }
  bool holds_some_of(std::size_t k) const { return stages_before(sublayers_, k, end_) > 0; }

  /// The seam before a sublayer and its first stage.
  void start(std::size_t k, int sub_batch) {
    const bool closing = work_.closes && k == sublayers_.size();
    if (!closing && (k >= sublayers_.size() || !holds_some_of(k))) return;
    const bool is_norm = work_.recomputes && k == begin_.sublayer;
    turns_.push_back({k, is_norm ? ForwardStage::norm : ForwardStage::seam, sub_batch});
    if (!closing) turns_.push_back({k, sublayers_[k].forward.front(), sub_batch});
  }
  /// The stages between the first and the last one that lie in the segment.
  void middle(std::size_t k, int sub_batch) {
    const std::span<const ForwardStage> stages = sublayers_[k].forward;
    const std::size_t from = std::max<std::size_t>(stages_before(sublayers_, k, begin_), 1);
    const std::size_t to = std::min(stages_before(sublayers_, k, end_), stages.size() - 1);
    for (std::size_t i = from; i < to; ++i) turns_.push_back({k, stages[i], sub_batch});
  }
  /// The last stage, and the first one of what comes next.
  void finish(std::size_t k, int sub_batch) {
    const auto start_next = [&] {
      if (sub_batch + 1 < overlap_.sub_batches)
        start(k, sub_batch + 1);
      else
        start(k + 1, 0);
    };
    const bool early = overlap_.sub_batches > 1 && overlap_.gathers_rows;
    if (early) start_next();
    const bool is_read = !work_.recomputes || k + 1 < end_.sublayer;
    if (is_read) turns_.push_back({k, sublayers_[k].forward.back(), sub_batch});
    if (!early) start_next();
  }

  std::span<const SublayerStages> sublayers_;
  const Overlap& overlap_;
  Edge begin_, end_;
  EdgeWork work_;
  std::vector<ForwardTurn> turns_;
};

/// The forward stage whose gradients a backward stage computes; nothing for those of dense sublayers, which segments do
/// not cut.
std::optional<ForwardStage> mirrored(BackwardStage stage) {
  switch (stage) {
    case BackwardStage::combine:
      return ForwardStage::combine;
    case BackwardStage::experts:
      return ForwardStage::experts;
    case BackwardStage::dispatch:
      return ForwardStage::dispatch;
    case BackwardStage::preprocess:
      return ForwardStage::preprocess;
    case BackwardStage::route:
      return ForwardStage::route;
    default:
      return std::nullopt;
  }
}

class BackwardOrder {
 public:
  BackwardOrder(std::span<const SublayerStages> sublayers, const Overlap& overlap, const Segment& segment,
                const Recomputation& recomputation)
      : sublayers_(sublayers),
        overlap_(overlap),
        begin_(segment.begin),
        end_(segment.end),
        recomputation_(recomputation) {}

  std::vector<BackwardTurn> make() {
    const bool cuts_last = end_.stage != ForwardStage::seam;
    const std::size_t last = cuts_last ? end_.sublayer : end_.sublayer - 1;
    if (!cuts_last) start(last);
    for (std::size_t k = last + 1; k-- > begin_.sublayer;) pass(k);
    return std::move(turns_);
  }

 private:
  void start(std::size_t k) {
    const auto range =
        std::ranges::find_if(recomputation_.ranges, [&](const auto& r) { return k >= r.begin && k < r.end; });
    if (range == recomputation_.ranges.end() && recomputation_.norms)
      turns_.push_back({k, BackwardStage::recompute_norm});
    if (range != recomputation_.ranges.end() && k + 1 == range->end)
      turns_.push_back({k, BackwardStage::recompute_range});
    turns_.push_back({k, BackwardStage::gather});
  }
  /// All stages of a sublayer that come after its gather, and the start of the next one.
  void pass(std::size_t k) {
    const bool ends_here = begin_.sublayer < k || begin_ == Edge{k};
    const std::vector<BackwardStage> stages = backward_stages(sublayers_[k].backward, overlap_);
    const bool puts_off = overlap_.gathers_rows && std::ranges::count(stages, BackwardStage::last_weight_grad) > 0;
    for (const BackwardStage stage : stages) {
      const bool is_put_off = puts_off && stage == BackwardStage::last_weight_grad;
      if (stage != BackwardStage::gather && !is_put_off && holds(k, stage)) turns_.push_back({k, stage});
    }
    if (!ends_here) return;
    turns_.push_back({k, BackwardStage::seam});
    const bool goes_on = k > begin_.sublayer;
    if (goes_on && overlap_.gathers_rows) start(k - 1);
    if (puts_off) turns_.push_back({k, BackwardStage::last_weight_grad});
    turns_.push_back({k, BackwardStage::done});
    if (goes_on && !overlap_.gathers_rows) start(k - 1);
  }
  bool holds(std::size_t k, BackwardStage stage) const {
    const std::optional<ForwardStage> forward = mirrored(stage);
    if (!forward) return true;
    const std::span<const ForwardStage> stages = sublayers_[k].forward;
    const auto at = static_cast<std::size_t>(std::ranges::find(stages, *forward) - stages.begin());
    return at >= stages_before(sublayers_, k, begin_) && at < stages_before(sublayers_, k, end_);
  }

  std::span<const SublayerStages> sublayers_;
  const Overlap& overlap_;
  Edge begin_, end_;
  const Recomputation& recomputation_;
  std::vector<BackwardTurn> turns_;
};

/// The segments without their orders.
std::vector<Segment> cut(std::span<const SublayerStages> sublayers, const Overlap& overlap) {
  std::vector<Segment> segments;
  const auto is_captured = [](const SublayerStages& s) { return s.captured_end != ForwardStage::seam; };
  const bool captures = std::ranges::any_of(sublayers, is_captured);
  bool captured = false;  // at the end of the sublayer before
  for (std::size_t k = 0; k < sublayers.size(); ++k) {
    const SublayerStages& s = sublayers[k];
    const bool begins_layer = k == 0 || s.layer != sublayers[k - 1].layer;
    if (k == 0 || (captures && (begins_layer || is_captured(s) != captured)))
      segments.push_back({{k}, {}, is_captured(s), {}, {}});
    captured = is_captured(s);
    segments.back().end = {k + 1};
    if (!captured || !s.captured_end) continue;
    if (overlap.sub_batches > 1)
      throw InternalError("[make_segments] capture ends inside a sublayer that has sub-microbatches");
    const Edge edge{k, *s.captured_end};
    segments.back().end = edge;
    segments.push_back({edge, {k + 1}, false, {}, {}});
    captured = false;
  }
  return segments;
}

}  // namespace

std::optional<ForwardStage> captured_end(const LayerEdges& layer, std::size_t sublayer) {
  const bool is_held = layer.any() && layer.begin.sublayer <= sublayer && layer.end.sublayer >= sublayer;
  if (!is_held) return ForwardStage::seam;
  return layer.end.sublayer > sublayer ? std::nullopt : std::optional(layer.end.stage);
}

std::vector<BackwardStage> backward_stages(std::span<const BackwardStage> stages, const Overlap& overlap) {
  std::vector<BackwardStage> order(stages.begin(), stages.end());
  const auto weight = std::ranges::find(order, BackwardStage::last_weight_grad);
  if (overlap.reduces && weight != order.end()) std::rotate(weight, weight + 1, order.end());
  return order;
}

std::vector<Segment> make_segments(std::span<const SublayerStages> sublayers, const Overlap& overlap,
                                   Recomputation& recomputation) {
  for (RecomputedRange& range : recomputation.ranges)
    range.forward = ForwardOrder(sublayers, overlap, {range.begin}, {range.end}, {.recomputes = true}).make();
  std::vector<Segment> segments = cut(sublayers, overlap);
  const auto defers_rest = [&](std::size_t i) {  // segment i to the next
    return overlap.sub_batches > 1 && i + 1 < segments.size() && segments[i].captured && segments[i + 1].captured;
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const EdgeWork work{
        .takes_rest = i > 0 && defers_rest(i - 1), .leaves_rest = defers_rest(i), .closes = i + 1 == segments.size()};
    segments[i].forward = ForwardOrder(sublayers, overlap, segments[i].begin, segments[i].end, work).make();
    segments[i].backward = BackwardOrder(sublayers, overlap, segments[i], recomputation).make();
  }
  return segments;
}

}  // namespace megalith::nn
