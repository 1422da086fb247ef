#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "megalith/nn/recompute_config.h"
#include "megalith/nn/seam.h"
#include "megalith/nn/segments.h"
#include "megalith/nn/sublayer.h"
#include "megalith/runtime/graph_cache.h"

namespace megalith::nn {

/// Is notified of the progress of a pass, so that communication of layers' parameters and gradients can overlap with
/// it.
class LayerEvents {
 public:
  virtual ~LayerEvents() = default;
  /// A forward pass is about to read the layer's parameters.
  virtual void layer_needed(Exec&, Index) {}
  /// A backward pass is about to write gradients of the layer. Called several times in a pass, but never after
  /// layer_done().
  virtual void layer_begins(Exec&, Index) {}
  /// A backward pass has added to all of the layer's gradients.
  virtual void layer_done(Exec&, Index) {}
};

/// Runs the captured segments of one pass.
struct SegmentGraphs {
  GraphCache* cache = nullptr;  ///< null: they run eagerly
  int chunk = 0, instance = 0;  ///< of GraphCache::Key
};

/// The residual stream of a chunk of layers: seam, sublayer, seam, sublayer, ..., closing seam. The ops of a pre-norm
/// GPT-2 layer, in order:
///   seam       x = stream + drop(mlp of the layer below + bias);  n = norm1(x)               one fused op
///   attention  gather n over tp; qkv GEMM + bias; attention; out GEMM; reduce over tp
///   seam       a = x + drop(attention(n) + bias);  m = norm2(a)                              one fused op
///   mlp        gather m over tp; up GEMM + bias + GELU; down GEMM; reduce over tp
///   next seam  y = a + drop(mlp(m) + bias), and the norm that follows
/// A gather communicates only with sequence parallelism. Each residual sum is in the seam after its sublayer, fused
/// with the next norm, also across layers. The backward pass is the mirror image.
///
/// Post-norm (NormPlacement::post): the norm of a sublayer stands after its residual sum, in the same fused op, and its
/// result is both the next sublayer's input and the stream. So the norms move on by one seam, the first seam has none,
/// and the closing one has: a = norm1(x + drop(attention(x) + bias)), y = norm2(a + drop(mlp(a) + bias)).
///
/// Passes follow the orders of make_segments(). run_forward() and run_backward() are the only loops over them. Const in
/// forward and backward; what must survive in between is in Saved, one per microbatch in flight. Passes allocate no
/// host memory. Communication and memory are those of the sublayers.
class SublayerStack {
 public:
  struct Entry {
    Index layer = 0;  ///< of the model
    Norm norm;        ///< before the sublayer; post-norm: after its residual sum
    std::unique_ptr<Sublayer> sublayer;
    DropoutSite dropout;                                            ///< after it
    std::optional<ForwardStage> captured_end = ForwardStage::seam;  ///< SublayerStages
  };
  /// The results of one forward pass.
  struct Pass {
    std::vector<Seam::Saved> seams;  ///< one more than there are sublayers
    std::vector<std::unique_ptr<Sublayer::Saved>> sublayers;
  };
  /// The launch of a graph skips the host code of its segment, so everything that crosses the edge of a segment is kept
  /// here.
  struct Saved {
    Pass first;
    Pass recomputed;                  ///< of the recomputed ranges only, from the second pass
    std::vector<GradWithBias> grads;  ///< of the residual sum at each seam: made by backward
    std::vector<Tensor> d_normed;     ///< of the input of each sublayer: made by backward

    /// The pass whose results backward reads.
    Pass& of_backward(std::size_t k) { return recomputed.sublayers[k] ? recomputed : first; }
    void take_host_memory(Device device);  ///< Sublayer::Saved
  };

  SublayerStack(const TensorParallel& tp, std::vector<Entry> entries, const RecomputeConfig& recompute = {},
                NormPlacement placement = NormPlacement::pre);

  bool empty() const { return sublayers_.empty(); }
  const std::vector<Segment>& segments() const { return segments_; }
  Saved make_saved() const;
  /// Sublayer::take_cache() of all sublayers, in order.
  void take_caches(const TakeKvCache& take, Saved& saved) const;

  /// x [O, H] stays until backward. The stream after the last sublayer is written to `output` [O, H], or to new memory
  /// if that is undefined, and returned. `events` may be null.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& output, Saved& saved,
                 LayerEvents* events = nullptr, const SegmentGraphs& graphs = {}) const;
  /// The bias_grad for the op that makes backward's dy. Post-norm: none, as the last norm makes that gradient.
  Tensor output_bias_grad() const { return is_post() ? Tensor() : seams_.back().bias_grad(); }
  /// dy [O, H], of the result. The gradient of x is written to dx [O, H], or to new memory if that is undefined, and
  /// returned. Adds to the gradients of all parameters. `events` may be null.
  Tensor backward(Exec& ex, const Microbatch& microbatch, const GradWithBias& dy, const Tensor& dx, Saved& saved,
                  LayerEvents* events = nullptr, const SegmentGraphs& graphs = {}) const;

 private:
  bool is_post() const { return placement_ == NormPlacement::post; }
  bool begins_layer(std::size_t k) const { return k == 0 || layers_[k] != layers_[k - 1]; }
  bool begins_layer(const Edge& edge) const { return edge == Edge{edge.sublayer} && begins_layer(edge.sublayer); }
  /// The ranges of whole layers that `recompute` selects.
  std::vector<RecomputedRange> recomputed_ranges(const RecomputeConfig& recompute) const;
  void run_forward(Exec& ex, const Microbatch& microbatch, std::span<const ForwardTurn> turns, const Tensor& output,
                   Pass& pass, LayerEvents* events) const;
  void run_seam(Exec& ex, const Microbatch& microbatch, std::size_t k, const Tensor& output, Pass& pass) const;
  void recompute_norm(Exec& ex, const Microbatch& microbatch, std::size_t k, Saved& saved) const;
  void recompute_range(Exec& ex, const Microbatch& microbatch, std::size_t last, Saved& saved) const;
  InFlight run_stage_backward(Exec& ex, const Microbatch& microbatch, std::size_t k, BackwardStage stage,
                              Saved& saved) const;
  /// From the gradient of the sublayer's input to that of the stream before it, in memory dx where that is defined.
  void run_seam_backward(Exec& ex, std::size_t k, const Tensor& dx, Saved& saved) const;
  /// From the gradient of the stream after the segment to that before it. At the beginning of the stack that is dx, if
  /// defined.
  void run_backward(Exec& ex, const Microbatch& microbatch, const Segment& segment, const Tensor& dx, Saved& saved,
                    LayerEvents* events) const;

  TensorParallel tp_;
  NormPlacement placement_;
  std::vector<Index> layers_;  // of each sublayer
  std::vector<std::unique_ptr<Sublayer>> sublayers_;
  std::vector<Seam> seams_;  // before each sublayer, then the closing one
  Recomputation recomputation_;
  std::vector<Segment> segments_;
};

}  // namespace megalith::nn
