#pragma once
#include "megalith/base/philox.h"
#include "megalith/runtime/exec.h"
#include "megalith/tensor/init.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith::ops {

/// What a parameter's part on one rank starts from.
struct InitialValues {
  const TensorSlice& slice;
  Init init = Init::zeros;
  double std = 0;  ///< of Init::normal
};

/// Fills `to` (the master values of a parameter: slice.local with padding rows behind it; f32 or f64) from the seed: a
/// function of (seed, name, global element), so that every grid starts equal. Padding rows become 0. N(0, std) by
/// Box-Muller on Philox words, computed in f64; a GPU's may differ in the last bit of f32. Source: docs/numerics.md.
void initialise(Exec& ex, const InitialValues& values, const Tensor& to, std::uint64_t seed);

/// The elements that initialise() draws for a normal parameter: [rows, columns] of a matrix or one row of a vector, and
/// where they stand in the global tensor.
struct NormalBox {
  RandomSite site;
  Index rows = 1, columns = 0;
  Index first_row = 0, first_column = 0, stride = 0;  ///< stride: columns of the global matrix

  NormalBox(const TensorSlice& slice, std::uint64_t seed);
  constexpr double at(Index row, Index column) const {
    return site.normal(static_cast<std::uint64_t>((first_row + row) * stride + first_column + column));
  }
};

/// to = from, rounded to nearest even where `to` holds fewer bits; equal shapes, any two of f64, f32, bf16, f16.
void cast(Exec& ex, const Tensor& from, const Tensor& to);

}  // namespace megalith::ops
