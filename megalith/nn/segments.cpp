#include "megalith/nn/segments.h"

#include <algorithm>

namespace megalith::nn {
namespace {

/// What of the work around a segment's edges belongs to it.
struct Edges {
  bool takes_rest = false;   ///< the last stage of the segment before, of the last sub-microbatch
  bool leaves_rest = false;  ///< ... of this one, to the next
  bool closes = false;       ///< the closing seam
  bool stops_early = false;  ///< no last stage of the last sublayer
};

class ForwardOrder {
 public:
  ForwardOrder(std::span<const StageCounts> sublayers, const Overlap& overlap, const Segment& segment,
               const Edges& edges)
      : sublayers_(sublayers), overlap_(overlap), segment_(segment), edges_(edges) {}

  std::vector<Turn> make() {
    const int last_sub_batch = overlap_.sub_batches - 1;
    if (edges_.takes_rest)
      finish(segment_.begin - 1, last_sub_batch);
    else
      start(segment_.begin, 0);
    for (std::size_t k = segment_.begin; k < segment_.end; ++k) {
      for (int sub_batch = 0; sub_batch < overlap_.sub_batches; ++sub_batch) {
        for (int stage = 1; stage + 1 < sublayers_[k].forward; ++stage) turns_.push_back({k, stage, sub_batch});
        if (!edges_.leaves_rest || k + 1 < segment_.end || sub_batch < last_sub_batch) finish(k, sub_batch);
      }
    }
    for (int sub_batch = 1; sub_batch < overlap_.sub_batches; ++sub_batch) {
      if (edges_.closes) start(segment_.end, sub_batch);
    }
    return std::move(turns_);
  }

 private:
  void start(std::size_t k, int sub_batch) {
    if (k < segment_.end || edges_.closes) turns_.push_back({k, 0, sub_batch});
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
    if (!edges_.stops_early || k + 1 < segment_.end) turns_.push_back({k, sublayers_[k].forward - 1, sub_batch});
    if (!early) start_next();
  }

  std::span<const StageCounts> sublayers_;
  const Overlap& overlap_;
  const Segment& segment_;
  const Edges& edges_;
  std::vector<Turn> turns_;
};

std::vector<Turn> backward_order(std::span<const StageCounts> sublayers, const Overlap& overlap, const Segment& segment,
                                 const Again& again) {
  std::vector<Turn> turns;
  const auto start = [&](std::size_t k) {
    const auto range = std::ranges::find_if(again.ranges, [&](const auto& r) { return k >= r.begin && k < r.end; });
    if (range == again.ranges.end() && again.norms) turns.push_back({k, kNormAgain});
    if (range != again.ranges.end() && k + 1 == range->end) turns.push_back({k, kForwardAgain});
    turns.push_back({k, 0});
  };
  start(segment.end - 1);
  for (std::size_t k = segment.end; k-- > segment.begin;) {
    const bool goes_on = k > segment.begin;
    for (int stage = 1; stage + 1 < sublayers[k].backward; ++stage) turns.push_back({k, stage});
    if (goes_on && overlap.gathers_rows) start(k - 1);
    turns.push_back({k, sublayers[k].backward - 1});
    if (goes_on && !overlap.gathers_rows) start(k - 1);
  }
  return turns;
}

}  // namespace

std::vector<Segment> make_segments(std::span<const StageCounts> sublayers, const Overlap& overlap, Again& again) {
  for (RecomputedRange& range : again.ranges) {
    const Segment whole{range.begin, range.end, false, {}, {}};
    range.forward = ForwardOrder(sublayers, overlap, whole, {.stops_early = true}).make();
  }
  std::vector<Segment> segments;
  const bool captures = std::ranges::any_of(sublayers, &StageCounts::captured);
  for (std::size_t k = 0; k < sublayers.size(); ++k) {
    const bool cut = k == 0 || (captures && (sublayers[k].layer != sublayers[k - 1].layer ||
                                             sublayers[k].captured != sublayers[k - 1].captured));
    if (cut) segments.push_back({k, k, sublayers[k].captured, {}, {}});
    segments.back().end = k + 1;
  }
  const auto hands_on = [&](std::size_t i) {  // segment i to the next
    return overlap.sub_batches > 1 && i + 1 < segments.size() && segments[i].captured && segments[i + 1].captured;
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Edges edges{i > 0 && hands_on(i - 1), hands_on(i), i + 1 == segments.size()};
    segments[i].forward = ForwardOrder(sublayers, overlap, segments[i], edges).make();
    segments[i].backward = backward_order(sublayers, overlap, segments[i], again);
  }
  return segments;
}

}  // namespace megalith::nn
