#pragma once
#include "megalith/ops/masters.h"

namespace megalith::support {

/// Split masters of n parameters in tensors of `ex`, with any contents. Element 0 has carry `first_carry`.
inline MasterValues empty_split(Exec& ex, Index n, Index first_carry = 0) {
  return {.copy = ex.tensor({n}, DType::bf16),
          .low = ex.tensor({n, 2}, DType::u8),
          .carries = ex.tensor({ceil_div(first_carry + n, MasterValues::kCarries)}, DType::u64),
          .first_carry = first_carry};
}

/// Split masters of these values [N] f32.
inline MasterValues split_of(Exec& ex, const Tensor& values) {
  const MasterValues masters = empty_split(ex, values.numel());
  ops::write_masters(ex, values, masters);
  return masters;
}

/// Masters as a run whose layers compute in `dtype` has them, with these values [N] f32.
inline MasterValues masters_for(Exec& ex, DType dtype, const Tensor& values) {
  if (dtype == DType::bf16) return split_of(ex, values);
  return {.whole = values, .copy = dtype == DType::f16 ? ex.tensor(values.shape(), dtype) : Tensor()};
}

}  // namespace megalith::support
