#include "megalith/ops/norm.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/dropout_check.h"
#include "megalith/ops/norm_kernels.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops {
namespace {

/// `shift`: beta, or its gradient.
void check_kind(const Arguments& expect, const Tensor& mean, const Tensor& shift, std::string_view shift_name) {
  if (static_cast<bool>(mean) == static_cast<bool>(shift)) return;
  throw ShapeError(
      str("[", expect.op, "] mean, ", shift_name, ": a layer norm needs both, an RMS norm must have neither"));
}

template <class Args>
void check_forward(const Exec& ex, const Args& args, const Arguments& expect) {
  expect_float(ex, args.x, expect.op);
  const auto [tokens, hidden] = expect.dims<2>(args.x, "x");
  const DType dtype = args.x.dtype(), stat_dtype = statistics_dtype(dtype);
  check_kind(expect, args.mean, args.beta, "beta");
  expect.like(args.gamma, {hidden}, dtype, "gamma");
  if (args.beta) expect.like(args.beta, {hidden}, dtype, "beta");
  expect.like(args.y, {tokens, hidden}, dtype, "y");
  if (args.mean) expect.like(args.mean, {tokens}, stat_dtype, "mean");
  expect.like(args.rstd, {tokens}, stat_dtype, "rstd");
}

}  // namespace

void norm_forward(Exec& ex, const NormForward& args) {
  check_forward(ex, args, {"norm"});
  run_kernel(
      ex, {.name = "norm", .reads = {args.x, args.gamma, args.beta}, .writes = {args.y, args.mean, args.rstd}},
      [args] { cpu::norm_forward(args); }, [args](auto&, auto stream) { cuda::norm_forward(stream, args); });
}

void residual_norm(Exec& ex, const ResidualNorm& args) {
  const Arguments expect{"residual_norm"};
  check_forward(ex, args, expect);
  const DType dtype = args.x.dtype();
  if (args.bias) expect.like(args.bias, args.gamma.shape(), dtype, "bias");
  expect.like(args.residual, args.x.shape(), dtype, "residual");
  expect.like(args.sum, args.x.shape(), dtype, "sum");
  check_dropout(args.dropout, expect.op);
  check_dropout_rows(args.dropout, expect.op);
  run_kernel(
      ex,
      {.name = "residual_norm",
       .reads = {args.x, args.bias, args.residual, args.gamma, args.beta, args.dropout.step_state},
       .writes = {args.sum, args.y, args.mean, args.rstd}},
      [args] { cpu::residual_norm(args); }, [args](auto&, auto stream) { cuda::residual_norm(stream, args); });
}

void norm_backward(Exec& ex, const NormBackward& args) {
  const Arguments expect{"norm_backward"};
  expect_float(ex, args.x, expect.op);
  const auto [tokens, hidden] = expect.dims<2>(args.x, "x");
  const DType dtype = args.x.dtype(), stat_dtype = statistics_dtype(dtype);
  check_kind(expect, args.mean, args.beta_grad, "beta_grad");
  expect.like(args.dy, {tokens, hidden}, dtype, "dy");
  expect.like(args.gamma, {hidden}, dtype, "gamma");
  if (args.mean) expect.like(args.mean, {tokens}, stat_dtype, "mean");
  expect.like(args.rstd, {tokens}, stat_dtype, "rstd");
  if (args.residual) expect.like(args.residual, {tokens, hidden}, dtype, "residual");
  if (args.more_dy) expect.like(args.more_dy, {tokens, hidden}, dtype, "more_dy");
  if (args.more_dy && args.residual)
    throw ShapeError(str("[", expect.op, "] more_dy, residual: at most one of them can be given"));
  expect.like(args.dx, {tokens, hidden}, dtype, "dx");
  expect.like(args.gamma_grad, {hidden}, stat_dtype, "gamma_grad");
  if (args.beta_grad) expect.like(args.beta_grad, {hidden}, stat_dtype, "beta_grad");
  if (args.bias_grad) expect.like(args.bias_grad, {hidden}, stat_dtype, "bias_grad");
  const bool sums_dx = ex.device() == Device::cuda && args.bias_grad;
  const Index sums = 1 + (args.beta_grad ? 1 : 0) + (sums_dx ? 1 : 0);
  const Tensor parts = ex.tensor({row_parts(ex, tokens), sums, hidden}, stat_dtype);
  run_kernel(
      ex,
      {.name = "norm_backward",
       .reads = {args.dy, args.x, args.gamma, args.mean, args.rstd, args.residual, args.more_dy, args.gamma_grad,
                 args.beta_grad, args.bias_grad},
       .writes = {args.dx, args.gamma_grad, args.beta_grad, args.bias_grad},
       .scratch = parts},
      [args, parts] { cpu::norm_backward(args, parts); },
      [args, parts](auto&, auto stream) { cuda::norm_backward(stream, args, parts); });
}

}  // namespace megalith::ops
