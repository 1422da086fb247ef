#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "megalith/tensor/memory.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith {

enum class Init : std::uint8_t { zeros, ones, normal };
enum class Decay : std::uint8_t { no, yes };
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
};

/// A parameter of one rank: its values and its main gradient, views into flat buffers.
struct Param {
  ParamSpec spec;
  Tensor value;
  Tensor grad;
  Index offset = 0;  ///< first element in the flat buffers

  const std::string& name() const { return spec.slice.name; }
  /// A view without the padding rows, of a tensor shaped like this parameter (value, grad, a moment).
  Tensor without_padding(const Tensor& like) const { return like.rows(0, spec.slice.local[0]); }
};

/// All parameters of one rank in flat buffers: owned ones first, so that the norm is one range. Positions are fixed by
/// the specs alone; memory comes with allocate(). References to params stay valid for the buffer's life.
class ParamBuffer {
 public:
  ParamBuffer(std::vector<ParamSpec> specs, DType dtype);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  /// Takes `parameters` and `gradients` (numel() elements each) from the ledger.
  void allocate(MemoryLedger& ledger);

  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);

  DType dtype() const { return dtype_; }
  Index numel() const { return numel_; }              ///< with alignment gaps, which stay 0
  Index owned_numel() const { return owned_numel_; }  ///< the first so many elements belong to owned parameters
  /// Flat views, [numel()].
  const Tensor& values() const { return values_; }
  const Tensor& grads() const { return grads_; }
  /// The part of a flat tensor of numel() elements that belongs to a parameter, in its shape.
  Tensor part(const Tensor& flat, const Param& param) const;

 private:
  std::vector<Param> params_;
  DType dtype_;
  Index numel_ = 0, owned_numel_ = 0;
  Buffer value_memory_, grad_memory_;
  Tensor values_, grads_;
};

/// Fills the held values from the seed: a function of (seed, name, global element), so that every grid starts equal.
/// Source: docs/numerics.md; N(0, init_std) by Box-Muller on Philox words.
void initialise(Param& param, std::uint64_t seed);

}  // namespace megalith
