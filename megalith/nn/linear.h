#pragma once
#include "megalith/nn/row_gemms.h"
#include "megalith/nn/tensor_parallel.h"
#include "megalith/params/param_set.h"

namespace megalith::nn {

// T tokens are inside a tensor-parallel region. Outside it a tensor has O of these rows (TensorParallel::rows_outside).

/// The gradient of a sum whose terms are the output of a row-parallel layer and its bias.
struct GradWithBias {
  Tensor grad;            ///< [O, H]
  Tensor bias_grad = {};  ///< [H], the bias gradient: the op that writes `grad` adds the sums of its rows to it. If
                          ///< undefined, the layer's own backward pass adds them
};

/// What the backward pass of a region reads of all rows, in flight: the gradient of its output, and its input.
struct BackwardInRegion {
  TensorParallel::InRegion d_out;  ///< [T, H]
  TensorParallel::InRegion x;      ///< [T, H]
  bool has_out_bias_grad = false;  ///< the op that made d_out has added to it
};

/// Whether the gradient of a bias is still to be added, or the op that made the gradient of the output has added it.
enum class BiasGrad : std::uint8_t { to_add, added };

/// How a GEMM writes the gradient of a weight, from Microbatch::weight_grads. A window holds another weight's before.
inline ops::Write write_of(const Param& weight, ops::Write weight_grads) {
  return weight.grad_in_window ? ops::Write::overwrite : weight_grads;
}

/// A weight as the matrix [out, in] that GEMMs read: [F, 2, H] is [2F, H].
inline Tensor as_matrix(const Tensor& weight) {
  const Index in = weight.dim(weight.shape().rank() - 1);
  return weight.reshaped({weight.numel() / in, in});
}

/// Y = X W^T + b, W split by output features over `tp`: begins a region. With GemmFormat::e4m3 the operands of a GEMM
/// are quantised in blocks of 128; each rank's blocks are those of one rank where 128 divides out/tp and in. So are
/// those of RowParallelLinear, where 128 divides in/tp and out. x [O, in] -> y [T, out/tp]. Between a column-parallel
/// and a row-parallel layer only element-wise or per-head work is allowed. Source: Shoeybi et al. 2019,
/// arXiv:1909.08053, section 3.
class ColumnParallelLinear {
 public:
  /// `bias` may be null: none is added.
  ColumnParallelLinear(TensorParallel tp, Param& weight, Param* bias, const GemmFormats& formats = {})
      : tp_(std::move(tp)), weight_(weight), bias_(bias), formats_(formats) {}

  /// The sub-microbatch's rows of x [O, in] -> [T/count, in]. Wait for the messages before they are read.
  [[nodiscard]] TensorParallel::InRegion to_region(Exec& ex, const Tensor& x, const SubBatch& sub_batch) const {
    return tp_.to_region(ex, sub_batch.of(x), sub_batch);
  }
  /// x [T/count, in], of the sub-microbatch -> its rows of y [T, out/tp]. The first sub-microbatch makes y. Fills the
  /// operands of x that make_row_operands() has made.
  void forward(Exec& ex, const Tensor& x, Tensor& y, const SubBatch& sub_batch, RowOperands operands = {}) const;
  /// The same followed by GELU, in one op: y = gelu(z), both [T, out/tp]. The backward pass of GELU reads z. Not with
  /// FP8 operands.
  struct GeluResults {
    Tensor &z, &y;
    ops::GeluForm form = ops::GeluForm::tanh;
  };
  void forward_gelu(Exec& ex, const Tensor& x, const GeluResults& results, const SubBatch& sub_batch) const;
  /// The same followed by SwiGLU: y [T, out/tp/2] of z [T, out/tp].
  struct SwigluResults {
    Tensor &z, &y;
  };
  void forward_swiglu(Exec& ex, const Tensor& x, const SwigluResults& results, const SubBatch& sub_batch) const;

  /// x [O, in] -> [T, in], for backward_weight. With sequence parallelism it is gathered again, because only the shares
  /// were kept.
  [[nodiscard]] TensorParallel::InRegion to_region_backward(Exec& ex, const Tensor& x) const {
    return tp_.to_region(ex, x, kWholeMicrobatch);
  }
  /// Overwrites dx [O, in], the sum over tp. The reduction overlaps with backward_weight and other work that follows.
  /// dy [T, out/tp]; with operands that are made it may be undefined. Wait before dx is read.
  [[nodiscard]] InFlight backward_input(Exec& ex, const Tensor& dy, const Tensor& dx, RowOperands operands = {}) const;
  /// Adds to the gradients of weight and bias; Write::overwrite replaces that of the weight. dy [T, out/tp]; x is from
  /// to_region_backward. Turned operands are read in place of either.
  void backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write, BiasGrad bias = BiasGrad::to_add,
                       const ops::Operand& dy_turned = {}, const ops::Operand& x_turned = {}) const;
  int sub_batches() const { return tp_.sub_batches(); }
  const GemmFormats& formats() const { return formats_; }
  bool is_sequence_parallel() const { return tp_.is_sequence_parallel(); }
  /// [out/tp]; undefined without a bias.
  Tensor bias_grad() const { return bias_ == nullptr ? Tensor() : bias_->grad.reshaped({bias_->grad.numel()}); }

 private:
  /// Whether backward_input() communicates.
  bool sums_input_grads() const { return tp_.group().size() > 1; }
  Tensor bias() const { return bias_ == nullptr ? Tensor() : bias_->value.reshaped({bias_->value.numel()}); }

  TensorParallel tp_;
  Param& weight_;  // value, grad: [out/tp, in]
  Param* bias_;    // [out/tp]
  GemmFormats formats_;
};

/// Y = sum over tp of X_i W_i^T, W split by input features: ends a region. x [T, in/tp] -> y [O, out]. Every rank holds
/// the whole bias. The op that follows adds it once, after the sum. Source: as above.
class RowParallelLinear {
 public:
  /// `bias` may be null: none is added.
  RowParallelLinear(TensorParallel tp, Param& weight, Param* bias, const GemmFormats& formats = {})
      : tp_(std::move(tp)), weight_(weight), bias_(bias), formats_(formats) {}

  /// The rows x [T/count, in/tp] of a sub-microbatch -> those of y [O, out]. The first sub-microbatch makes y. x may be
  /// undefined with operands that are made; others are filled. Wait for the result before y is read.
  InFlight forward(Exec& ex, const Tensor& x, Tensor& y, const SubBatch& sub_batch, RowOperands operands = {}) const;
  /// dy [O, out] -> [T, out], the input of the functions below.
  [[nodiscard]] TensorParallel::InRegion to_region_backward(Exec& ex, const Tensor& dy) const {
    return tp_.to_region(ex, dy, kWholeMicrobatch);
  }
  /// Overwrites dx [T, in/tp]. No communication. dy [T, out].
  void backward_input(Exec& ex, const Tensor& dy, const Tensor& dx, RowOperands operands = {}) const;
  /// The same and back through the gelu that made x from z, in one op: overwrites dz [T, in/tp] and adds the sum of its
  /// rows to bias_grad [in/tp], the bias of the layer before; undefined where that has none. Not with FP8 operands.
  struct GeluGradient {
    Tensor z, dz;
    ops::GeluForm form = ops::GeluForm::tanh;
  };
  void backward_input_gelu(Exec& ex, const Tensor& dy, const GeluGradient& gelu, const Tensor& bias_grad) const;
  /// The same back through the SwiGLU that made x from z: overwrites dz [T, 2 in/tp], and x if it was not kept.
  struct SwigluGradient {
    Tensor z, dz;
    Tensor x = {};
  };
  void backward_input_swiglu(Exec& ex, const Tensor& dy, const SwigluGradient& swiglu) const;
  /// Adds to the weight gradient; Write::overwrite replaces it. Also adds to the gradient of the bias, over all rows,
  /// unless that has been done. x [T, in/tp]. Turned operands are read in place of dy or x.
  void backward_weight(Exec& ex, const BackwardInRegion& gathered, const Tensor& x, ops::Write write,
                       const ops::Operand& dy_turned = {}, const ops::Operand& x_turned = {}) const;
  const Param* bias() const { return bias_; }
  const GemmFormats& formats() const { return formats_; }

 private:
  TensorParallel tp_;
  Param& weight_;  // [out, in/tp]
  Param* bias_;    // [out]
  GemmFormats formats_;
};

}  // namespace megalith::nn
