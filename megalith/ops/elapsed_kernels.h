#pragma once
#include "megalith/ops/elapsed.h"

namespace megalith::ops {

// begin: (1) i64.  sum: (1) f64.

/// The difference of two clock readings in ns, as us.
constexpr double elapsed_us(std::int64_t begin_ns, std::int64_t now_ns) {
  return static_cast<double>(now_ns - begin_ns) / 1000;
}

namespace cpu {
void start_clock(const Tensor& begin);
void add_elapsed(const Tensor& begin, const Tensor& sum);
}  // namespace cpu

namespace cuda {
void start_clock(Stream stream, const Tensor& begin);
void add_elapsed(Stream stream, const Tensor& begin, const Tensor& sum);
}  // namespace cuda

}  // namespace megalith::ops
