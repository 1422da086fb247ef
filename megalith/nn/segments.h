#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::nn {

/// One entry of the order in which the sub-microbatches of a microbatch pass through sublayers: one stage of one
/// sublayer. Its first forward stage begins with the seam before the sublayer. After the last sublayer it is the
/// closing seam alone.
struct Turn {
  std::size_t sublayer = 0;
  int stage = 0;
  int sub_batch = 0;  ///< forward only; backward passes have no sub-microbatches
  bool operator==(const Turn&) const = default;
};
// Instead of a backward stage, before the first one of a sublayer:
inline constexpr int kNormAgain = -1;     ///< the seam before it recomputes its normed rows
inline constexpr int kForwardAgain = -2;  ///< the forward pass of the recomputed range that ends with it runs again

/// Sublayers [begin, end) of which a forward pass keeps only the residual stream before them.
struct RecomputedRange {
  std::size_t begin = 0, end = 0;
  /// The second pass. It leaves out the last stage of the last sublayer, because backward does not read its output. The
  /// seam before the range only computes its norm.
  std::vector<Turn> forward = {};
};

/// Consecutive sublayers [begin, end) that run as a unit, the unit of capture. The orders are made once, when a model
/// is built, like a schedule.
struct Segment {
  std::size_t begin = 0, end = 0;
  bool captured = false;  ///< a graph holds its passes; then all of it belongs to one layer
  std::vector<Turn> forward, backward;
};

/// The properties of a sublayer from which the order follows.
struct StageCounts {
  Index layer = 0;        ///< of the model, to which the sublayer belongs
  bool captured = false;  ///< by graphs of layers
  int forward = 3, backward = 3;
};

/// How communication overlaps with compute.
struct Overlap {
  int sub_batches = 1;        ///< sub-microbatches in forward passes
  bool gathers_rows = false;  ///< a sublayer begins with a gather (sequence parallelism)
};

/// What backward recomputes.
struct Again {
  std::vector<RecomputedRange> ranges = {};  ///< ascending; make_segments() fills in the orders
  bool norms = false;                        ///< outside the ranges
};

/// The segments of a chunk, in forward order. Without captured sublayers there is one. Otherwise a segment ends at the
/// end of its layer, and where capture begins or ends within a layer. The seam between two segments belongs to the
/// second one, the closing seam to the last one.
///
/// Forward, the communication of one sub-microbatch overlaps with the compute of the other: the last stage of a
/// sublayer for one is followed by the middle stages for the other. With sequence parallelism the gather of the other
/// sub-microbatch starts before that last stage, and overlaps with it, too. Between two captured segments in sequence,
/// the last stage of the last sub-microbatch moves into the second segment, so that its reduction overlaps with the
/// first GEMM there.
///
/// Backward, with sequence parallelism the last stage of a sublayer comes after the first stage of the next one, whose
/// gather it overlaps with; otherwise before it. Recomputation comes right before the first stage of the first sublayer
/// that reads the result. If several segments share a recomputed range, it runs in the last of them.
std::vector<Segment> make_segments(std::span<const StageCounts> sublayers, const Overlap& overlap, Again& again);

}  // namespace megalith::nn
