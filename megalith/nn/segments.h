#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::nn {

/// One entry of the order in which sub-microbatches pass through sublayers: a stage of one of them. The first forward
/// stage begins with the seam before the sublayer; past the last sublayer it is the closing seam alone.
struct Turn {
  std::size_t sublayer = 0;
  int stage = 0;
  int sub_batch = 0;  ///< forward; backward passes know no sub-microbatches
  bool operator==(const Turn&) const = default;
};
// In place of a backward stage, before a sublayer's first one:
inline constexpr int kNormAgain = -1;     ///< the seam before it computes its normed rows again
inline constexpr int kForwardAgain = -2;  ///< the recomputed range that ends with it passes forward again

/// Sublayers [begin, end) of which a forward pass keeps no more than the residual stream before them.
struct RecomputedRange {
  std::size_t begin = 0, end = 0;
  /// The second pass. It leaves out the last stage of the last sublayer, whose results backward does not read. The seam
  /// before the range computes its norm only.
  std::vector<Turn> forward = {};
};

/// Neighbouring sublayers [begin, end) that run in one go: the unit of capture. Orders are made once, when a model is
/// built, like a schedule.
struct Segment {
  std::size_t begin = 0, end = 0;
  bool captured = false;  ///< a graph holds its passes; then all of it belongs to one layer
  std::vector<Turn> forward, backward;
};

/// What the order follows from.
struct StageCounts {
  Index layer = 0;        ///< of the model, that the sublayer belongs to
  bool captured = false;  ///< by graphs of layers
  int forward = 3, backward = 3;
};

/// How communication overlaps with compute.
struct Overlap {
  int sub_batches = 1;        ///< of a microbatch, in forward passes
  bool gathers_rows = false;  ///< an all-gather brings rows to each sublayer (sequence parallelism)
};

/// What backward computes again.
struct Again {
  std::vector<RecomputedRange> ranges = {};  ///< ascending; the orders are filled in by make_segments()
  bool norms = false;                        ///< outside the ranges
};

/// The segments of a chunk, in forward order. Without captured sublayers there is one. Otherwise a segment ends with
/// its layer, and where capture begins or ends within a layer. The seam between two segments belongs to the second, the
/// closing one to the last.
///
/// Forward, the communication of one sub-microbatch overlaps with the compute of the other: a sublayer's last stage of
/// one is followed by the middle stages of the other. With sequence parallelism the other's gather starts before that
/// last stage and overlaps with it. Between two captured segments that follow each other, the last stage of the last
/// sub-microbatch moves into the second segment, so that its message overlaps with that one's first GEMM.
///
/// Backward, a sublayer's last stage comes after the first stage of the next, whose gather it hides; where nothing is
/// gathered, before it. What is computed again comes right before the first stage of the first sublayer that reads it;
/// a range that several segments share, in the last of them.
std::vector<Segment> make_segments(std::span<const StageCounts> sublayers, const Overlap& overlap, Again& again);

}  // namespace megalith::nn
