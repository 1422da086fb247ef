#include "megalith/ops/elapsed.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/elapsed_kernels.h"

namespace megalith::ops {

void start_clock(Exec& ex, const Tensor& begin) {
  expect_like(begin, {1}, DType::i64, "start_clock.begin");
  run_kernel(
      ex, {.name = "start_clock", .reads = {}, .writes = {begin}, .kind = OpKind::clock},
      [begin] { cpu::start_clock(begin); }, [begin](auto&, auto stream) { cuda::start_clock(stream, begin); });
}

void add_elapsed(Exec& ex, const Tensor& begin, const Tensor& sum) {
  expect_like(begin, {1}, DType::i64, "add_elapsed.begin");
  expect_like(sum, {1}, DType::f64, "add_elapsed.sum");
  run_kernel(
      ex, {.name = "add_elapsed", .reads = {begin, sum}, .writes = {sum}, .kind = OpKind::clock},
      [=] { cpu::add_elapsed(begin, sum); }, [=](auto&, auto stream) { cuda::add_elapsed(stream, begin, sum); });
}

}  // namespace megalith::ops
