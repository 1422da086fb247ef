#pragma once
#include <optional>

#include "megalith/nn/norm.h"

namespace megalith::nn {

/// Between two sublayers of a residual stream r [O, H]:  r' = r + dropout(y + bias), with y [O, H] the output of the
/// sublayer before; then normed = norm(r'), the input of the sublayer after. One fused op computes both. The first seam
/// of a chunk has no sublayer before it (r' = r). O = T rows or their shares, outside the tensor-parallel regions. No
/// communication.
///   pre:  the stream goes on as r'. The last seam of a chunk has no norm.
///   post: the stream goes on as normed. The first seam of a chunk has no norm (normed = r), the last one has.
class Seam {
 public:
  /// What the sublayer before adds to the stream.
  struct Addend {
    const Param* bias = nullptr;  ///< [H]; null: none
    DropoutSite dropout;
  };
  /// x [O, H] is r', y [O, H] the normed rows.
  using Saved = Norm::Saved;

  Seam(TensorParallel tp, std::optional<Addend> before, std::optional<Norm> norm, NormPlacement placement)
      : tp_(std::move(tp)), before_(std::move(before)), norm_(std::move(norm)), placement_(placement) {}

  /// The stream [O, H] after this seam: the residual of the next.
  const Tensor& stream(const Saved& saved) const { return placement_ == NormPlacement::pre ? saved.x : saved.y; }

  /// For the rows of microbatch.sub_batch. `y` [O, H] is the output of the sublayer before, and `residual` [O, H] is r.
  /// They are read if there is a sublayer before; saved.x must then have memory, and is written. Otherwise saved.x is
  /// read.
  void forward(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Tensor& residual, Saved& saved) const;
  /// Recomputes the normed rows from saved.x if they were not kept. The bits are those of forward().
  void recompute_norm(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
    if (norm_)
      norm_->forward(ex, saved.x, saved, microbatch.sub_batch);
    else
      saved.y = saved.x;
  }
  /// From the gradient of the normed rows as the next sublayer's input, and that of the stream from after that
  /// sublayer, to that of r', dx. Adds to the gradients of the norm and to dx.bias_grad. Pre: only if there is a norm.
  void backward(Exec& ex, const Tensor& d_normed, const Tensor& residual, const Saved& saved,
                const GradWithBias& dx) const;
  /// The last seam of a chunk, post: from the gradient of the normed rows.
  void backward_at_end(Exec& ex, const Tensor& d_normed, const Saved& saved, const GradWithBias& dx) const {
    norm_->backward(ex, d_normed, saved, {}, dx);
  }
  /// The gradient of y, from that of r'. Only if there is a sublayer before.
  GradWithBias addend_grad(Exec& ex, const Microbatch& microbatch, const GradWithBias& dx) const {
    return {tp_.through_dropout(ex, microbatch, before_->dropout, dx.grad), dx.bias_grad};
  }
  /// The bias_grad for the op that makes the gradient of r': the gradient of the bias before. Undefined where that is
  /// the sum of something else: after a dropout, or over all ranks' rows; then the sublayer's own backward adds to it.
  /// Undefined, too, without a bias.
  Tensor bias_grad() const {
    if (!before_ || before_->bias == nullptr || before_->dropout.probability > 0 || tp_.is_sequence_parallel())
      return {};
    return before_->bias->grad;
  }

 private:
  TensorParallel tp_;
  std::optional<Addend> before_;
  std::optional<Norm> norm_;
  NormPlacement placement_;
};

}  // namespace megalith::nn
