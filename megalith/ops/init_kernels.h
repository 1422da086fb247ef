#pragma once
#include "megalith/ops/init.h"

namespace megalith::ops {

// to: the shape of slice.local with its last dimension contiguous, then padding rows.  cast: any shape, as (N) : (1).

namespace cpu {
void initialise(const InitialValues& values, const Tensor& to, std::uint64_t seed);
void cast(const Tensor& from, const Tensor& to);
}  // namespace cpu

namespace cuda {
void initialise(Stream stream, const InitialValues& values, const Tensor& to, std::uint64_t seed);
/// Defined in elementwise.cu. Any two of f64, f32, bf16, f16.
void cast(Stream stream, const Tensor& from, const Tensor& to);
}  // namespace cuda

}  // namespace megalith::ops
