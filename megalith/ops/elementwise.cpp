#include "megalith/ops/elementwise.h"

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/dropout_check.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/row_parts.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

void add_bias(Exec& ex, const Tensor& x, const Tensor& bias) {
  expect_float(ex, x, "add_bias");
  const auto [tokens, features] = dims<2>(x, "add_bias.x");
  expect_like(bias, {features}, x.dtype(), "add_bias.bias");
  run_kernel(
      ex, {.name = "add_bias", .reads = {x, bias}, .writes = {x}}, [=] { cpu::add_bias(x, bias); },
      [=](auto&, auto stream) { cuda::add_bias(stream, x, bias); });
}

void bias_backward(Exec& ex, const Tensor& dy, const Tensor& bias_grad) {
  expect_float(ex, dy, "bias_backward");
  const auto [tokens, features] = dims<2>(dy, "bias_backward.dy");
  const DType sum_dtype = statistics_dtype(dy.dtype());
  expect_like(bias_grad, {features}, sum_dtype, "bias_backward.bias_grad");
  const Tensor parts = ex.tensor({row_parts(ex, tokens), features}, sum_dtype);
  run_kernel(
      ex, {.name = "bias_backward", .reads = {dy, bias_grad}, .writes = {bias_grad}, .scratch = parts},
      [=] { cpu::bias_backward(dy, bias_grad, parts); },
      [=](auto&, auto stream) { cuda::bias_backward(stream, dy, bias_grad, parts); });
}

void bias_gelu(Exec& ex, const BiasGelu& args) {
  expect_float(ex, args.x, "bias_gelu");
  const auto [tokens, features] = dims<2>(args.x, "bias_gelu.x");
  expect_like(args.bias, {features}, args.x.dtype(), "bias_gelu.bias");
  expect_like(args.y, {tokens, features}, args.x.dtype(), "bias_gelu.y");
  run_kernel(
      ex, {.name = "bias_gelu", .reads = {args.x, args.bias}, .writes = {args.x, args.y}},
      [args] { cpu::bias_gelu(args); }, [args](auto&, auto stream) { cuda::bias_gelu(stream, args); });
}

void gelu(Exec& ex, const Gelu& args) {
  expect_float(ex, args.z, "gelu");
  expect_like(args.y, args.z.shape(), args.z.dtype(), "gelu.y");
  run_kernel(
      ex, {.name = "gelu", .reads = {args.z}, .writes = {args.y}}, [args] { cpu::gelu(args); },
      [args](auto&, auto stream) { cuda::gelu(stream, args); });
}

void gelu_backward(Exec& ex, const GeluBackward& args) {
  expect_float(ex, args.z, "gelu_backward");
  expect_like(args.dy, args.z.shape(), args.z.dtype(), "gelu_backward.dy");
  expect_like(args.dz, args.z.shape(), args.z.dtype(), "gelu_backward.dz");
  run_kernel(
      ex, {.name = "gelu_backward", .reads = {args.z, args.dy}, .writes = {args.dz}},
      [args] { cpu::gelu_backward(args); }, [args](auto&, auto stream) { cuda::gelu_backward(stream, args); });
}

void tanh_forward(Exec& ex, const Tensor& x, const Tensor& y) {
  expect_float(ex, x, "tanh_forward");
  expect_like(y, x.shape(), x.dtype(), "tanh_forward.y");
  run_kernel(
      ex, {.name = "tanh_forward", .reads = {x}, .writes = {y}}, [=] { cpu::tanh_forward(x, y); },
      [=](auto&, auto stream) { cuda::tanh_forward(stream, x, y); });
}

void tanh_backward(Exec& ex, const TanhBackward& args) {
  expect_float(ex, args.y, "tanh_backward");
  expect_like(args.dy, args.y.shape(), args.y.dtype(), "tanh_backward.dy");
  expect_like(args.dx, args.y.shape(), args.y.dtype(), "tanh_backward.dx");
  run_kernel(
      ex, {.name = "tanh_backward", .reads = {args.y, args.dy}, .writes = {args.dx}},
      [args] { cpu::tanh_backward(args); }, [args](auto&, auto stream) { cuda::tanh_backward(stream, args); });
}

void bias_dropout_residual(Exec& ex, const BiasDropoutResidual& args) {
  expect_float(ex, args.x, "bias_dropout_residual");
  const auto [tokens, hidden] = dims<2>(args.x, "bias_dropout_residual.x");
  if (args.bias) expect_like(args.bias, {hidden}, args.x.dtype(), "bias_dropout_residual.bias");
  expect_like(args.residual, {tokens, hidden}, args.x.dtype(), "bias_dropout_residual.residual");
  expect_like(args.out, {tokens, hidden}, args.x.dtype(), "bias_dropout_residual.out");
  check_dropout(args.dropout, "bias_dropout_residual");
  check_dropout_rows(args.dropout, "bias_dropout_residual");
  run_kernel(
      ex,
      {.name = "bias_dropout_residual",
       .reads = {args.x, args.bias, args.residual, args.dropout.step_state},
       .writes = {args.out}},
      [args] { cpu::bias_dropout_residual(args); },
      [args](auto&, auto stream) { cuda::bias_dropout_residual(stream, args); });
}

void dropout_backward(Exec& ex, const DropoutBackward& args) {
  expect_float(ex, args.dout, "dropout_backward");
  const auto [tokens, hidden] = dims<2>(args.dout, "dropout_backward.dout");
  expect_like(args.dx, {tokens, hidden}, args.dout.dtype(), "dropout_backward.dx");
  check_dropout(args.dropout, "dropout_backward");
  check_dropout_rows(args.dropout, "dropout_backward");
  run_kernel(
      ex, {.name = "dropout_backward", .reads = {args.dout, args.dropout.step_state}, .writes = {args.dx}},
      [args] { cpu::dropout_backward(args); }, [args](auto&, auto stream) { cuda::dropout_backward(stream, args); });
}

void add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out) {
  expect_float(ex, a, "add");
  expect_like(b, a.shape(), a.dtype(), "add.b");
  expect_like(out, a.shape(), a.dtype(), "add.out");
  run_kernel(
      ex, {.name = "add", .reads = {a, b}, .writes = {out}}, [=] { cpu::add(a, b, out); },
      [=](auto&, auto stream) { cuda::add(stream, a, b, out); });
}

void fill(Exec& ex, const Tensor& x, double value) {
  if (x.dtype() != DType::f64) expect_float(ex, x, "fill");
  run_kernel(
      ex, {.name = "fill", .reads = {}, .writes = {x}}, [=] { cpu::fill(x, value); },
      [=](auto&, auto stream) { cuda::fill(stream, x, value); });
}

void copy(Exec& ex, const Tensor& from, const Tensor& to) {
  expect_like(to, from.shape(), from.dtype(), "copy.to");
  ex.run({.name = "copy", .reads = {from}, .writes = {to}},
         [=](Exec& exec, Stream stream) { device::copy(exec.device(), to.raw(), from.raw(), from.bytes(), stream); });
}

void scale(Exec& ex, const Tensor& x, double factor) {
  expect_float(ex, x, "scale");
  run_kernel(
      ex, {.name = "scale", .reads = {x}, .writes = {x}}, [=] { cpu::scale(x, factor); },
      [=](auto&, auto stream) { cuda::scale(stream, x, factor); });
}

void check_dropout(const Dropout& dropout, std::string_view op) {
  if (!(dropout.probability >= 0 && dropout.probability < 1)) {
    throw ShapeError(str("[", op, ".dropout.probability] = ", dropout.probability, ": must be in [0, 1)"));
  }
  const Shape shape{Index{sizeof(StepState)}};
  const Tensor& state = dropout.step_state;
  if (dropout.probability == 0 || (state && state.shape() == shape && state.dtype() == DType::u8)) return;
  expect_like(state, shape, DType::u8, str(op, ".dropout.step_state"));
}

void check_dropout_rows(const Dropout& dropout, std::string_view op) {
  if (dropout.probability == 0 || dropout.seq_len > 0) return;
  throw ShapeError(str("[", op, ".dropout.seq_len] = ", dropout.seq_len,
                       ": must be at least 1: it is the number of rows of one sample, from which the random numbers "
                       "follow"));
}

}  // namespace megalith::ops
