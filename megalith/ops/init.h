#pragma once
#include "megalith/base/philox.h"
#include "megalith/runtime/exec.h"
#include "megalith/tensor/init.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith::ops {

/// What the part of a parameter on one rank is initialised from.
struct InitialValues {
  const TensorSlice& slice;
  Init init = Init::zeros;
  double std = 0;  ///< standard deviation of Init::normal
};

/// Fills `to` (f32 or f64), the master values of a parameter: slice.local, then padding rows. Values are a function of
/// (seed, name, global element), so every grid starts equal. Padding rows become 0. N(0, std) is made by Box-Muller on
/// Philox words, computed in f64. A GPU's values may differ in the last bit of f32. Source: docs/numerics.md.
void initialise(Exec& ex, const InitialValues& values, const Tensor& to, std::uint64_t seed);

/// The elements that initialise() draws for a normal parameter, as rows of its last dimension. It has their places in
/// the global tensor.
struct NormalBox {
  static constexpr int kOuter = Shape::kMaxRank - 1;
  RandomSite site;
  Index rows = 1, columns = 0;
  Index first_column = 0, stride = 0;  ///< stride: columns of the global tensor
  /// The dimensions before the last one, right-aligned. Missing ones are 1 in `local` and `global`, and 0 in `offset`.
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

/// to = from, rounded to nearest even where `to` holds fewer bits. Shapes are equal; dtypes are any two of f64, f32,
/// bf16, f16.
void cast(Exec& ex, const Tensor& from, const Tensor& to);

}  // namespace megalith::ops
