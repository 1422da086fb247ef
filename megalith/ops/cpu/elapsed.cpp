#include <chrono>

#include "megalith/ops/elapsed_kernels.h"

namespace megalith::ops::cpu {
namespace {

std::int64_t now_ns() {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void start_clock(const Tensor& begin) { *begin.data<std::int64_t>() = now_ns(); }

void add_elapsed(const Tensor& begin, const Tensor& sum) {
  *sum.data<double>() += elapsed_us(*begin.data<std::int64_t>(), now_ns());
}

}  // namespace megalith::ops::cpu
