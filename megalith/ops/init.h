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

/// The elements that initialise() draws for a normal parameter, as rows of its last dimension, and where they stand in
/// the global tensor.
struct NormalBox {
  static constexpr int kOuter = Shape::kMaxRank - 1;
  RandomSite site;
  Index rows = 1, columns = 0;
  Index first_column = 0, stride = 0;  ///< stride: columns of the global tensor
  /// Of the dimensions before the last, the last of them behind; of those that there are not, 1, 1 and 0.
  Index local[kOuter] = {1, 1, 1}, global[kOuter] = {1, 1, 1}, offset[kOuter] = {};

  NormalBox(const TensorSlice& slice, std::uint64_t seed);
  constexpr double at(Index row, Index column) const {
    Index global_row = 0, rows_of_one = 1;
    for (int d = kOuter; d-- > 0;) {
      global_row += (offset[d] + row % local[d]) * rows_of_one;
      row /= local[d];
      rows_of_one *= global[d];
    }
    return site.normal(static_cast<std::uint64_t>(global_row * stride + first_column + column));
  }
};

/// to = from, rounded to nearest even where `to` holds fewer bits; equal shapes, any two of f64, f32, bf16, f16.
void cast(Exec& ex, const Tensor& from, const Tensor& to);

}  // namespace megalith::ops
