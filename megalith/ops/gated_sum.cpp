#include "megalith/ops/gated_sum.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/gated_sum_kernels.h"

namespace megalith::ops {

void gated_sum(Exec& ex, const GatedSum& args) {
  expect_float(ex, args.routed, "gated_sum");
  const auto [tokens, hidden] = dims<2>(args.routed, "gated_sum.routed");
  const DType dtype = args.routed.dtype();
  expect_like(args.shared, {tokens, hidden}, dtype, "gated_sum.shared");
  if (args.gate) expect_like(args.gate, {tokens, 1}, statistics_dtype(dtype), "gated_sum.gate");
  expect_like(args.y, {tokens, hidden}, dtype, "gated_sum.y");
  run_kernel(
      ex, {.name = "gated_sum", .reads = {args.routed, args.shared, args.gate}, .writes = {args.y}},
      [args] { cpu::gated_sum(args); }, [args](auto&, auto stream) { cuda::gated_sum(stream, args); });
}

void gated_sum_backward(Exec& ex, const GatedSumBackward& args) {
  expect_float(ex, args.dy, "gated_sum_backward");
  const auto [tokens, hidden] = dims<2>(args.dy, "gated_sum_backward.dy");
  const DType dtype = args.dy.dtype(), wide = statistics_dtype(dtype);
  expect_like(args.shared, {tokens, hidden}, dtype, "gated_sum_backward.shared");
  expect_like(args.gate, {tokens, 1}, wide, "gated_sum_backward.gate");
  expect_like(args.d_shared, {tokens, hidden}, dtype, "gated_sum_backward.d_shared");
  expect_like(args.d_gate, {tokens, 1}, wide, "gated_sum_backward.d_gate");
  run_kernel(
      ex,
      {.name = "gated_sum_backward",
       .reads = {args.dy, args.shared, args.gate},
       .writes = {args.d_shared, args.d_gate}},
      [args] { cpu::gated_sum_backward(args); },
      [args](auto&, auto stream) { cuda::gated_sum_backward(stream, args); });
}

}  // namespace megalith::ops
