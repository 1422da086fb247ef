#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::nn {

/// The stages of the forward pass of a sublayer. All begin with `seam` and `gather`. Then an attention or an MLP has
/// first_gemm and last_gemm; a mixture of experts has the others.
enum class ForwardStage : std::uint8_t {
  seam,        ///< the seam before the sublayer. After the last sublayer: the closing seam
  norm,        ///< instead of the seam at the beginning of a recomputed range: only the norm of the seam
  gather,      ///< starts to gather the rows of the input
  first_gemm,  ///< multiplies the gathered rows
  last_gemm,   ///< the local work, the last GEMM, and the start of the reduction of its result
  route,       ///< chooses experts
  preprocess,  ///< counts the rows of each expert, and sorts rows by destination
  dispatch,    ///< sends rows to the ranks of their experts
  experts,     ///< the GEMMs of the experts, and the way back of their results
  combine      ///< sums the weighted results of each row
};

/// The stages of the backward pass of a sublayer. They mirror the forward stages of the same names.
enum class BackwardStage : std::uint8_t {
  recompute_norm,     ///< the seam before the sublayer recomputes its normed rows
  recompute_range,    ///< the forward pass of the recomputed range that ends with the sublayer runs again
  gather,             ///< starts to gather what backward reads of all rows
  last_input_grad,    ///< the input gradient of the last GEMM
  last_weight_grad,   ///< the weight gradient of the last GEMM. make_segments() decides when it runs
  first_input_grad,   ///< the local work, the first GEMM, and the start of the reduction of the input gradient
  first_weight_grad,  ///< the weight gradient of the first GEMM
  combine,            ///< this and the next four: of a mixture of experts
  experts,
  dispatch,
  preprocess,
  route,
  seam,  ///< the norm before the sublayer, and the residual sum. Waits for the input gradient
  done   ///< all gradients of the sublayer have been added to
};

/// One entry of the order in which the sub-microbatches of a microbatch pass forward through sublayers.
struct ForwardTurn {
  std::size_t sublayer = 0;
  ForwardStage stage = {};
  int sub_batch = 0;
  bool operator==(const ForwardTurn&) const = default;
};
/// One entry of the order of a backward pass, which has no sub-microbatches.
struct BackwardTurn {
  std::size_t sublayer = 0;
  BackwardStage stage = {};
  bool operator==(const BackwardTurn&) const = default;
};

/// A place between stages: before `stage` of `sublayer`, in forward order. A whole sublayer begins before its seam.
struct Edge {
  std::size_t sublayer = 0;
  ForwardStage stage = ForwardStage::seam;
  bool operator==(const Edge&) const = default;
};

/// The stages of a layer that its graph holds: from `begin` to `end`. Sublayers are counted within the layer: 0 is
/// attention, 1 the MLP or the experts, 2 the next layer. Without any the layer runs eagerly.
struct LayerEdges {
  Edge begin, end;
  bool operator==(const LayerEdges&) const = default;
  bool any() const { return begin != end; }
  bool holds_attention() const { return any() && begin.sublayer == 0; }
  bool ends_layer() const { return any() && end.sublayer == 2; }
};
/// The edges of the graphs of a model's layers.
struct CaptureEdges {
  LayerEdges dense = {}, moe = {};
  bool any() const { return dense.any() || moe.any(); }
};
/// SublayerStages::captured_end of a sublayer of a layer.
std::optional<ForwardStage> captured_end(const LayerEdges& layer, std::size_t sublayer);

/// Sublayers [begin, end) of which a forward pass keeps only the residual stream before them.
struct RecomputedRange {
  std::size_t begin = 0, end = 0;
  /// The second pass. It leaves out the last stage of the last sublayer, because backward does not read its output. The
  /// seam before the range only computes its norm.
  std::vector<ForwardTurn> forward = {};
};

/// Consecutive stages from `begin` to `end` that run as a unit, the unit of capture. The orders are made once, when a
/// model is built, like a schedule.
struct Segment {
  Edge begin, end;
  bool captured = false;  ///< a graph holds its passes; then all of it belongs to one layer
  std::vector<ForwardTurn> forward;
  std::vector<BackwardTurn> backward;
};

/// The properties of a sublayer from which the order follows.
struct SublayerStages {
  Index layer = 0;  ///< of the model, to which the sublayer belongs
  /// Without the seam before it. The first stage is `gather`; in backward, `last_weight_grad` stands where its operands
  /// have been read.
  std::span<const ForwardStage> forward;
  std::span<const BackwardStage> backward;
  /// Graphs of layers hold the stages before this one, and the seam. Unset: all of them. The seam: none.
  std::optional<ForwardStage> captured_end = ForwardStage::seam;
};

/// How communication overlaps with compute.
struct Overlap {
  int sub_batches = 1;        ///< sub-microbatches in forward passes
  bool gathers_rows = false;  ///< a sublayer begins with a gather (sequence parallelism)
  bool reduces = false;       ///< a sublayer ends with a reduction (tensor parallelism)
};

/// What backward recomputes.
struct Recomputation {
  std::vector<RecomputedRange> ranges = {};  ///< ascending; make_segments() fills in the orders
  bool norms = false;                        ///< outside the ranges
};

/// The backward stages of a sublayer that runs by itself. With a reduction the last weight gradient comes after the
/// first one, so that both overlap with the reduction of the input gradient.
std::vector<BackwardStage> backward_stages(std::span<const BackwardStage> stages, const Overlap& overlap);

/// The segments of a chunk, in forward order. Without captured stages there is one. Otherwise a segment ends at the end
/// of its layer, and where capture begins or ends within a layer. The seam between two segments belongs to the second
/// one, the closing seam to the last one. Throws InternalError if capture ends inside a sublayer with several
/// sub-microbatches.
///
/// Forward, the communication of one sub-microbatch overlaps with the compute of the other: the last stage of a
/// sublayer for one is followed by the middle stages for the other. With sequence parallelism the gather of the other
/// sub-microbatch starts before that last stage, and overlaps with it, too. Between two captured segments in sequence,
/// the last stage of the last sub-microbatch moves into the second segment, so that its reduction overlaps with the
/// first GEMM there.
///
/// Backward, the last weight gradient of a sublayer overlaps with communication. With sequence parallelism that is the
/// gather of the next sublayer, within the segment; otherwise as in backward_stages(). Recomputation comes right before
/// the first stage of the first sublayer that reads the result. If several segments share a recomputed range, it runs
/// in the last of them.
std::vector<Segment> make_segments(std::span<const SublayerStages> sublayers, const Overlap& overlap,
                                   Recomputation& recomputation);

}  // namespace megalith::nn
