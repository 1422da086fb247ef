#pragma once
#include <memory>
#include <span>
#include <vector>

#include "megalith/nn/moe/expert_parallel.h"

namespace megalith::nn {

/// Rows in the order of their experts, those of an expert by (source rank, token).
struct ExpertRows {
  Tensor rows;                   ///< [M, H]; only the first rows are used
  std::span<const Index> sizes;  ///< of each expert of this rank; known when the pass runs, not when it is recorded
};

/// Brings rows to the ranks of their experts and results back. Const: what backward needs is in Saved, one for each
/// layer and microbatch in flight. The steps of a pass, in order: preprocess, permute, dispatch, return_rows, combine.
/// Backward mirrors the last four.
class Dispatcher {
 public:
  struct Saved {
    virtual ~Saved() = default;
    virtual void take_host_memory(Device) {}  ///< Sublayer::Saved
  };
  virtual ~Dispatcher() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;

  /// From every row's experts [n, K] i32 (-1: dropped), whose rows are `mode`'s: where rows go and come from.
  virtual void preprocess(Exec& ex, const Tensor& experts, Mode mode, Saved& saved) const = 0;
  /// x [n, H] to rows in the order of their destinations.
  virtual void permute(Exec& ex, const Tensor& x, Saved& saved) const = 0;
  /// Those to the rows of this rank's experts. When it returns the host knows all sizes.
  virtual ExpertRows dispatch(Exec& ex, Saved& saved) const = 0;
  /// The experts' results [M, H] back to where their rows came from. Backward reads them there.
  virtual void return_rows(Exec& ex, const Tensor& rows, Saved& saved) const = 0;
  /// y [n, H] = sum over a row's experts of weights [n, K] times what they returned, in the order of choices, in f32
  /// (f64). Dropped pairs are left out.
  virtual void combine(Exec& ex, const Tensor& weights, const Tensor& y, Saved& saved) const = 0;

  /// dy [n, H] -> d_weights [n, K], and the gradient of the results where their rows came from.
  virtual void combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights, const Tensor& d_weights,
                                Saved& saved) const = 0;
  /// That to the gradient of the experts' results.
  virtual ExpertRows return_rows_backward(Exec& ex, Saved& saved) const = 0;
  /// The gradient of dispatch()'s rows [M, H] to where they came from.
  virtual void dispatch_backward(Exec& ex, const Tensor& rows, Saved& saved) const = 0;
  /// That to the gradient dx [n, H] of permute()'s x, of this rank's slices.
  virtual void permute_backward(Exec& ex, const Tensor& dx, Saved& saved) const = 0;
};

/// The sizes that a dispatcher plans with.
struct DispatchSizes {
  Index num_experts = 0, top_k = 0;
  /// Every expert gets `capacity` rows of each run of `run` rows, filled up with zeros; run 0: as many as chose it.
  Index capacity = 0, run = 0;
  bool pads() const { return run > 0; }
};

}  // namespace megalith::nn
