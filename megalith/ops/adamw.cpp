#include "megalith/ops/adamw.h"

#include "megalith/ops/adamw_kernels.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/masters.h"

namespace megalith::ops {

void adamw(Exec& ex, const AdamW& args) {
  const auto [numel] = dims<1>(args.m, "adamw.m");
  const DType dtype = args.masters.dtype();
  expect_masters(ex, args.masters, numel, "adamw");
  const bool is_rounded = args.m.dtype() == DType::bf16;
  expect_like(args.m, {numel}, is_rounded ? DType::bf16 : dtype, "adamw.m");
  expect_like(args.v, {numel}, args.m.dtype(), "adamw.v");
  if (is_rounded) {
    expect_like(args.rounding.param_of, {ceil_div(numel, kDecayGroup)}, DType::i32, "adamw.rounding.param_of");
    expect_dtype(args.rounding.params, DType::u8, "adamw.rounding.params");
  }
  expect_like(args.grad, {numel}, dtype, "adamw.grad");
  expect_like(args.decays, {ceil_div(numel, kDecayGroup)}, DType::u8, "adamw.decays");
  expect_struct<StepVerdict>(args.verdict, "adamw.verdict");
  run_kernel(
      ex,
      {.name = "adamw",
       .reads = {args.masters.whole, args.masters.copy, args.masters.low, args.masters.carries, args.m, args.v,
                 args.rounding.params, args.rounding.param_of, args.grad, args.decays, args.verdict},
       .writes = {args.masters.whole, args.masters.copy, args.masters.low, args.masters.carries, args.m, args.v}},
      [args] { cpu::adamw(args); }, [args](auto&, auto stream) { cuda::adamw(stream, args); });
}

Index square_blocks(Device device, Index n) {
  return ceil_div(n, device == Device::cpu ? cpu::kSquaresBlock : cuda::kSquaresBlock);
}

void sum_of_squares(Exec& ex, const Tensor& x, const Tensor& sums) {
  const auto [rows, n] = dims<2>(x, "sum_of_squares.x");
  expect_float(ex, x, "sum_of_squares");
  expect_like(sums, {rows, square_blocks(ex.device(), n)}, DType::f64, "sum_of_squares.sums");
  run_kernel(
      ex, {.name = "sum_of_squares", .reads = {x}, .writes = {sums}}, [=] { cpu::sum_of_squares(x, sums); },
      [=](auto&, auto stream) { cuda::sum_of_squares(stream, x, sums); });
}

void add_up(Exec& ex, const Tensor& numbers, const Tensor& total) {
  const auto [count] = dims<1>(numbers, "add_up.numbers");
  expect_like(numbers, {count}, DType::f64, "add_up.numbers");
  expect_like(total, {1}, DType::f64, "add_up.total");
  run_kernel(
      ex, {.name = "add_up", .reads = {numbers, total}, .writes = {total}}, [=] { cpu::add_up(numbers, total); },
      [=](auto&, auto stream) { cuda::add_up(stream, numbers, total); });
}

}  // namespace megalith::ops
