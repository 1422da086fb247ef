#pragma once
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/tensor/memory.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith {

enum class Init : std::uint8_t { zeros, ones, normal };
enum class Decay : std::uint8_t { no, yes };
/// How the first microbatch's gradient arrives: `replaced` by a product that overwrites, so that nothing need be
/// cleared before a step nor read in it; `summed` onto zeros. Later microbatches add in either case.
enum class FirstGrad : std::uint8_t { summed, replaced };
/// What a rank's passes leave in a gradient: all of it, or the sum over some of the microbatch's rows, to which the
/// other ranks that hold the same values add theirs (layer norms under sequence parallelism).
enum class GradRows : std::uint8_t { all, some };
/// Several ranks of one model copy may hold the same values (layer norms over tp, the tied embedding on two stages).
/// Exactly one of them is the owner: it counts in the gradient norm and writes the checkpoint.
enum class Ownership : std::uint8_t { owner, replica };

/// What a model says about a parameter before memory exists.
struct ParamSpec {
  TensorSlice slice;  ///< what of the global tensor (without padding) this rank holds
  Shape held;         ///< shape in memory; its first dimension may exceed slice.local's by padding rows, which stay 0
  Init init = Init::zeros;
  double init_std = 0;
  Decay decay = Decay::yes;
  Ownership ownership = Ownership::owner;
  FirstGrad first_grad = FirstGrad::summed;
  GradRows grad_rows = GradRows::all;
  Index layer = -1;  ///< global number of its Transformer layer; -1 outside the layers
};

/// How a run stores numbers. Sums, statistics and losses are f32 wherever compute is not f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, as the optimizer and checkpoints know them
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  bool operator==(const Policy&) const = default;
};

/// A parameter of one rank: views into flat buffers.
struct Param {
  ParamSpec spec;
  Tensor value;      ///< what layers read, in the compute dtype
  Tensor master;     ///< what the optimizer updates; `value` itself where both dtypes are one
  Tensor grad;       ///< main gradient, in the master dtype
  Index offset = 0;  ///< first element in the flat buffers

  const std::string& name() const { return spec.slice.name; }
  /// A view without the padding rows, of a tensor shaped like this parameter (value, grad, a moment).
  Tensor without_padding(const Tensor& like) const { return like.rows(0, spec.slice.local[0]); }
};

/// All parameters of one rank in flat buffers: owned ones first, so that the norm is one range; among them those with
/// replaced gradients first, so that what must be cleared is one or two ranges, and those with GradRows::some last, so
/// that what the ranks sum is one range that looks the same on all of them. Positions are fixed by the specs alone;
/// memory comes with allocate(). References to params stay valid for the buffer's life.
class ParamBuffer {
 public:
  /// Throws InternalError where the parameters with GradRows::some are neither all owned nor all replicas.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  /// By owner: "parameters", "gradients" (numel() elements each) and, where layers read another dtype, "parameter
  /// copies".
  BytesByOwner bytes() const;
  /// Takes those from the ledger.
  void allocate(MemoryLedger& ledger);

  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);

  const Policy& policy() const { return policy_; }
  bool has_copy() const { return policy_.master != policy_.compute; }
  Index numel() const { return numel_; }              ///< with alignment gaps, which stay 0
  Index owned_numel() const { return owned_numel_; }  ///< the first so many elements belong to owned parameters
  /// Flat views, [numel()].
  const Tensor& values() const { return values_; }
  const Tensor& masters() const { return masters_; }
  const Tensor& grads() const { return grads_; }
  /// The gradients that are zero when a step begins: flat ranges, those of the owned parameters and of the replicas.
  const std::array<Tensor, 2>& summed_grads() const { return summed_grads_; }
  /// The gradients with GradRows::some: a flat range, the same parameters in the same order on every rank that holds
  /// them, whether as owner or as replica. Empty where there are none.
  Tensor partial_grads() const { return grads_.rows(partial_begin_, partial_numel_); }
  /// The part of a flat tensor of numel() elements that belongs to a parameter, in its shape.
  Tensor part(const Tensor& flat, const Param& param) const;

 private:
  /// Of the owned ones or of the replicas.
  Tensor summed_grads_of(Ownership ownership) const;

  std::vector<Param> params_;
  Policy policy_;
  Index numel_ = 0, owned_numel_ = 0;
  Index partial_begin_ = 0, partial_numel_ = 0;
  Buffer master_memory_, copy_memory_, grad_memory_;
  Tensor values_, masters_, grads_;
  std::array<Tensor, 2> summed_grads_;
};

}  // namespace megalith
