#include "megalith/ops/adamw.h"

#include "megalith/ops/cpu/adamw.h"
#include "megalith/ops/cuda/adamw.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void adamw(Exec& ex, const AdamW& args) {
  const auto [numel] = dims<1>(args.value, "adamw.value");
  const DType dtype = statistics_dtype(args.value.dtype());
  expect_dtype(args.value, dtype, "adamw.value");
  expect_float(ex, args.value, "adamw");
  expect_like(args.m, {numel}, dtype, "adamw.m");
  expect_like(args.v, {numel}, dtype, "adamw.v");
  expect_like(args.grad, {numel}, dtype, "adamw.grad");
  if (args.copy) expect_shape(args.copy, {numel}, "adamw.copy");
  expect_like(args.decays, {ceil_div(numel, kDecayGroup)}, DType::u8, "adamw.decays");
  expect_like(args.verdict, {Index{sizeof(StepVerdict)}}, DType::u8, "adamw.verdict");
  run_wide(
      ex,
      {.name = "adamw",
       .reads = {args.value, args.m, args.v, args.grad, args.decays, args.verdict},
       .writes = {args.value, args.m, args.v, args.copy}},
      dtype, [args]<class T>() { cpu::adamw<T>(args); }, [args](auto&, auto stream) { cuda::adamw(stream, args); });
}

void sum_of_squares(Exec& ex, const Tensor& x, const Tensor& sum_squares) {
  expect_float(ex, x, "sum_of_squares");
  expect_like(sum_squares, {1}, DType::f64, "sum_of_squares.sum_squares");
  const Index count =
      ex.device() == Device::cpu ? ceil_div(x.numel(), cpu::kSquaresBlock) : cuda::square_parts(x.numel());
  const Tensor parts = ex.tensor({count}, DType::f64);
  run_wide(
      ex, {.name = "sum_of_squares", .reads = {x, sum_squares}, .writes = {sum_squares, parts}}, x.dtype(),
      [=]<class T>() { cpu::sum_of_squares<T>(x, sum_squares, parts); },
      [=](auto&, auto stream) { cuda::sum_of_squares(stream, x, sum_squares, parts); });
}

}  // namespace megalith::ops
