#include "megalith/ops/adamw.h"

#include "megalith/ops/cpu/adamw.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void adamw(Exec& ex, const AdamW& args) {
  expect_float(args.value, "adamw");
  const DType dtype = args.value.dtype();
  expect_like(args.m, args.value.shape(), dtype, "adamw.m");
  expect_like(args.v, args.value.shape(), dtype, "adamw.v");
  expect_like(args.grad, args.value.shape(), dtype, "adamw.grad");
  expect_like(args.verdict, {Index{sizeof(StepVerdict)}}, DType::u8, "adamw.verdict");
  run_float(ex,
            {.name = "adamw",
             .reads = {args.value, args.m, args.v, args.grad, args.verdict},
             .writes = {args.value, args.m, args.v}},
            dtype, [args]<class T>() { cpu::adamw<T>(args); });
}

void sum_of_squares(Exec& ex, const Tensor& x, const Tensor& sum_squares) {
  expect_float(x, "sum_of_squares");
  expect_like(sum_squares, {1}, DType::f64, "sum_of_squares.sum_squares");
  const Tensor parts = ex.tensor({ceil_div(x.numel(), cpu::kSquaresBlock)}, DType::f64);
  run_float(ex, {.name = "sum_of_squares", .reads = {x, sum_squares}, .writes = {sum_squares, parts}}, x.dtype(),
            [=]<class T>() { cpu::sum_of_squares<T>(x, sum_squares, parts); });
}

}  // namespace megalith::ops
