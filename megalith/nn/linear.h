#pragma once
#include "megalith/nn/tensor_parallel.h"
#include "megalith/params/param_set.h"

namespace megalith::nn {

// Inside a tensor-parallel region a tensor has T token rows, outside it O of them (TensorParallel::rows_outside).

/// When a region's backward pass computes the weight gradient of its last product, the row-parallel one.
enum class WeightGradTime : std::uint8_t {
  at_once,       ///< its operands have just been read: no communication is to be hidden
  beside_sum,    ///< behind the region's other one, both beside the sum of its input's gradient
  beside_gather  ///< beside the gather for the next region
};

/// The gradient of a sum that a row-parallel layer's result and its bias went into.
struct GradWithBias {
  Tensor grad;            ///< [O, H]
  Tensor bias_grad = {};  ///< [H], the bias's gradient, to which the op that writes `grad` adds the sums of its rows;
                          ///< may be undefined: then the layer's own backward pass adds them
};

/// What a region's backward pass reads of all rows, in flight: the gradient of its result, and its input.
struct BackwardInRegion {
  TensorParallel::InRegion d_out;  ///< [T, H]
  TensorParallel::InRegion x;      ///< [T, H]
  bool has_out_bias_grad = false;  ///< the op that made d_out has added to it
};

/// Y = X W^T + b, W split by output features over `tp`: begins a region. x [O, in] -> y [T, out/tp]. Between a
/// column-parallel and a row-parallel layer only element-wise or per-head work may stand. Source: Shoeybi et al. 2019,
/// arXiv:1909.08053, section 3.
class ColumnParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [O, in], alive until backward has read it
    Tensor y;  ///< [T, out/tp], the result; of forward_gelu: before gelu
    /// Forward only: each sub-microbatch's rows of x in the region, [T/count, in].
    std::array<Tensor, kMaxSubBatches> in_region;
  };
  ColumnParallelLinear(TensorParallel tp, Param& weight, Param& bias)
      : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  /// Brings the sub-microbatch's rows of x to the region. Wait for the result before its forward.
  InFlight to_region(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch) const;
  Tensor forward(Exec& ex, Saved& saved, const SubBatch& sub_batch) const;
  /// The same followed by gelu, in one op: the result goes to gelu_y [T, out/tp]; saved.y is what gelu's backward
  /// reads.
  void forward_gelu(Exec& ex, Tensor& gelu_y, Saved& saved, const SubBatch& sub_batch) const;

  /// x [O, in] -> [T, in], for backward_weight. With sequence parallelism only shares were kept, so it is gathered
  /// again.
  [[nodiscard]] TensorParallel::InRegion to_region_backward(Exec& ex, const Saved& saved) const {
    return tp_.to_region(ex, saved.x, kWholeMicrobatch);
  }
  /// Overwrites dx [O, in], the sum over tp: backward_weight and what else follows hide it. dy [T, out/tp]. Wait before
  /// dx is read.
  [[nodiscard]] InFlight backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// Adds to the gradients of weight and bias; Write::overwrite replaces the weight's. dy [T, out/tp], x from
  /// to_region_backward
  void backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write) const;
  /// To the weight's only: where bias_grad() was added to by the op that made dy.
  void backward_weight_without_bias(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write) const;
  const Tensor& bias_grad() const { return bias_.grad; }

 private:
  /// Whether backward_input() communicates.
  bool sums_input_grads() const { return tp_.group().size() > 1; }

  TensorParallel tp_;
  Param& weight_;  // value, grad: [out/tp, in]
  Param& bias_;    // [out/tp]
};

/// Y = sum over tp of X_i W_i^T, W split by input features: ends a region. x [T, in/tp] -> y [O, out]. The bias is full
/// on every rank and added once, after the sum, by the op that follows. Source: as above.
class RowParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [T, in/tp]
    Tensor y;  ///< [O, out], the result
  };
  RowParallelLinear(TensorParallel tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  /// Wait for the result before saved.y is read.
  InFlight forward(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch) const;
  /// dy [O, out] -> [T, out], which the functions below take.
  [[nodiscard]] TensorParallel::InRegion to_region_backward(Exec& ex, const Tensor& dy) const {
    return tp_.to_region(ex, dy, kWholeMicrobatch);
  }
  /// Overwrites dx [T, in/tp]; no communication. dy [T, out]
  void backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// The same and back through the gelu that made x from z, in one op: overwrites dz [T, in/tp] and adds the sum of its
  /// rows to bias_grad [in/tp], the bias of the layer before.
  void backward_input_gelu(Exec& ex, const Tensor& dy, const Tensor& z, const Tensor& dz,
                           const Tensor& bias_grad) const;
  /// If `now` is the time for it: a region's backward pass calls this at each of them. Adds to the gradient of the bias
  /// too, which is of all rows, unless it is there.
  void backward_weight_at(WeightGradTime now, Exec& ex, const BackwardInRegion& entered, const Saved& saved,
                          ops::Write write) const;
  const Param& bias() const { return bias_; }

 private:
  WeightGradTime weight_grad_time() const;

  TensorParallel tp_;
  Param& weight_;  // [out, in/tp]
  Param& bias_;    // [out]
};

}  // namespace megalith::nn
