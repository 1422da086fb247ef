#include "megalith/ops/swiglu.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/swiglu_kernels.h"

namespace megalith::ops {

void swiglu(Exec& ex, const Swiglu& args) {
  expect_float(ex, args.gate_up, "swiglu");
  const auto [tokens, units] = dims<2>(args.y, "swiglu.y");
  const DType dtype = args.gate_up.dtype();
  expect_like(args.gate_up, {tokens, 2 * units}, dtype, "swiglu.gate_up");
  expect_like(args.y, {tokens, units}, dtype, "swiglu.y");
  run_kernel(
      ex, {.name = "swiglu", .reads = {args.gate_up}, .writes = {args.y}}, [args] { cpu::swiglu(args); },
      [args](auto&, auto stream) { cuda::swiglu(stream, args); });
}

void swiglu_backward(Exec& ex, const SwigluBackward& args) {
  expect_float(ex, args.gate_up, "swiglu_backward");
  const auto [tokens, units] = dims<2>(args.dy, "swiglu_backward.dy");
  const DType dtype = args.gate_up.dtype();
  expect_like(args.gate_up, {tokens, 2 * units}, dtype, "swiglu_backward.gate_up");
  expect_like(args.dy, {tokens, units}, dtype, "swiglu_backward.dy");
  expect_like(args.dgate_up, {tokens, 2 * units}, dtype, "swiglu_backward.dgate_up");
  run_kernel(
      ex, {.name = "swiglu_backward", .reads = {args.gate_up, args.dy}, .writes = {args.dgate_up}},
      [args] { cpu::swiglu_backward(args); }, [args](auto&, auto stream) { cuda::swiglu_backward(stream, args); });
}

}  // namespace megalith::ops
