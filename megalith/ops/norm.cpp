#include "megalith/ops/norm.h"

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/norm.h"
#include "megalith/ops/cuda/norm.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/dropout_check.h"

namespace megalith::ops {

void layer_norm_forward(Exec& ex, const LayerNormForward& args) {
  expect_float(ex, args.x, "layer_norm");
  const auto [tokens, hidden] = dims<2>(args.x, "layer_norm.x");
  const DType dtype = args.x.dtype();
  expect_like(args.gamma, {hidden}, dtype, "layer_norm.gamma");
  expect_like(args.beta, {hidden}, dtype, "layer_norm.beta");
  expect_like(args.y, {tokens, hidden}, dtype, "layer_norm.y");
  expect_like(args.mean, {tokens}, statistics_dtype(dtype), "layer_norm.mean");
  expect_like(args.rstd, {tokens}, statistics_dtype(dtype), "layer_norm.rstd");
  run_float(
      ex, {.name = "layer_norm", .reads = {args.x, args.gamma, args.beta}, .writes = {args.y, args.mean, args.rstd}},
      dtype, [args]<class T>() { cpu::layer_norm_forward<T>(args); },
      [args](auto&, auto stream) { cuda::layer_norm_forward(stream, args); });
}

void residual_layer_norm(Exec& ex, const ResidualLayerNorm& args) {
  expect_float(ex, args.x, "residual_layer_norm");
  const auto [tokens, hidden] = dims<2>(args.x, "residual_layer_norm.x");
  const DType dtype = args.x.dtype(), stat_dtype = statistics_dtype(dtype);
  if (args.bias) expect_like(args.bias, {hidden}, dtype, "residual_layer_norm.bias");
  expect_like(args.residual, {tokens, hidden}, dtype, "residual_layer_norm.residual");
  expect_like(args.gamma, {hidden}, dtype, "residual_layer_norm.gamma");
  expect_like(args.beta, {hidden}, dtype, "residual_layer_norm.beta");
  expect_like(args.sum, {tokens, hidden}, dtype, "residual_layer_norm.sum");
  expect_like(args.y, {tokens, hidden}, dtype, "residual_layer_norm.y");
  expect_like(args.mean, {tokens}, stat_dtype, "residual_layer_norm.mean");
  expect_like(args.rstd, {tokens}, stat_dtype, "residual_layer_norm.rstd");
  check_dropout(args.dropout, "residual_layer_norm");
  check_dropout_rows(args.dropout, "residual_layer_norm");
  run_float(
      ex,
      {.name = "residual_layer_norm",
       .reads = {args.x, args.bias, args.residual, args.gamma, args.beta, args.dropout.step_state},
       .writes = {args.sum, args.y, args.mean, args.rstd}},
      dtype, [args]<class T>() { cpu::residual_layer_norm<T>(args); },
      [args](auto&, auto stream) { cuda::residual_layer_norm(stream, args); });
}

void layer_norm_backward(Exec& ex, const LayerNormBackward& args) {
  expect_float(ex, args.x, "layer_norm_backward");
  const auto [tokens, hidden] = dims<2>(args.x, "layer_norm_backward.x");
  const DType dtype = args.x.dtype();
  expect_like(args.dy, {tokens, hidden}, dtype, "layer_norm_backward.dy");
  expect_like(args.gamma, {hidden}, dtype, "layer_norm_backward.gamma");
  const DType stat_dtype = statistics_dtype(dtype);
  expect_like(args.mean, {tokens}, stat_dtype, "layer_norm_backward.mean");
  expect_like(args.rstd, {tokens}, stat_dtype, "layer_norm_backward.rstd");
  if (args.residual) expect_like(args.residual, {tokens, hidden}, dtype, "layer_norm_backward.residual");
  expect_like(args.dx, {tokens, hidden}, dtype, "layer_norm_backward.dx");
  expect_like(args.gamma_grad, {hidden}, stat_dtype, "layer_norm_backward.gamma_grad");
  expect_like(args.beta_grad, {hidden}, stat_dtype, "layer_norm_backward.beta_grad");
  if (args.bias_grad) expect_like(args.bias_grad, {hidden}, stat_dtype, "layer_norm_backward.bias_grad");
  const Index blocks = ex.device() == Device::cpu ? cpu::row_blocks(tokens) : cuda::row_parts(tokens);
  const Index sums = ex.device() == Device::cuda && args.bias_grad ? 3 : 2;
  const Tensor parts = ex.tensor({blocks, sums, hidden}, stat_dtype);
  run_float(
      ex,
      {.name = "layer_norm_backward",
       .reads = {args.dy, args.x, args.gamma, args.mean, args.rstd, args.residual, args.gamma_grad, args.beta_grad,
                 args.bias_grad},
       .writes = {args.dx, args.gamma_grad, args.beta_grad, args.bias_grad},
       .scratch = parts},
      dtype, [args, parts]<class T>() { cpu::layer_norm_backward<T>(args, parts); },
      [args, parts](auto&, auto stream) { cuda::layer_norm_backward(stream, args, parts); });
}

void rms_norm_forward(Exec& ex, const RmsNormForward& args) {
  expect_float(ex, args.x, "rms_norm");
  const auto [tokens, hidden] = dims<2>(args.x, "rms_norm.x");
  const DType dtype = args.x.dtype();
  expect_like(args.gamma, {hidden}, dtype, "rms_norm.gamma");
  expect_like(args.y, {tokens, hidden}, dtype, "rms_norm.y");
  expect_like(args.rstd, {tokens}, statistics_dtype(dtype), "rms_norm.rstd");
  run_float(
      ex, {.name = "rms_norm", .reads = {args.x, args.gamma}, .writes = {args.y, args.rstd}}, dtype,
      [args]<class T>() { cpu::rms_norm_forward<T>(args); },
      [args](auto&, auto stream) { cuda::rms_norm_forward(stream, args); });
}

void residual_rms_norm(Exec& ex, const ResidualRmsNorm& args) {
  expect_float(ex, args.x, "residual_rms_norm");
  const auto [tokens, hidden] = dims<2>(args.x, "residual_rms_norm.x");
  const DType dtype = args.x.dtype();
  if (args.bias) expect_like(args.bias, {hidden}, dtype, "residual_rms_norm.bias");
  expect_like(args.residual, {tokens, hidden}, dtype, "residual_rms_norm.residual");
  expect_like(args.gamma, {hidden}, dtype, "residual_rms_norm.gamma");
  expect_like(args.sum, {tokens, hidden}, dtype, "residual_rms_norm.sum");
  expect_like(args.y, {tokens, hidden}, dtype, "residual_rms_norm.y");
  expect_like(args.rstd, {tokens}, statistics_dtype(dtype), "residual_rms_norm.rstd");
  check_dropout(args.dropout, "residual_rms_norm");
  check_dropout_rows(args.dropout, "residual_rms_norm");
  run_float(
      ex,
      {.name = "residual_rms_norm",
       .reads = {args.x, args.bias, args.residual, args.gamma, args.dropout.step_state},
       .writes = {args.sum, args.y, args.rstd}},
      dtype, [args]<class T>() { cpu::residual_rms_norm<T>(args); },
      [args](auto&, auto stream) { cuda::residual_rms_norm(stream, args); });
}

void rms_norm_backward(Exec& ex, const RmsNormBackward& args) {
  expect_float(ex, args.x, "rms_norm_backward");
  const auto [tokens, hidden] = dims<2>(args.x, "rms_norm_backward.x");
  const DType dtype = args.x.dtype(), stat_dtype = statistics_dtype(dtype);
  expect_like(args.dy, {tokens, hidden}, dtype, "rms_norm_backward.dy");
  expect_like(args.gamma, {hidden}, dtype, "rms_norm_backward.gamma");
  expect_like(args.rstd, {tokens}, stat_dtype, "rms_norm_backward.rstd");
  if (args.residual) expect_like(args.residual, {tokens, hidden}, dtype, "rms_norm_backward.residual");
  expect_like(args.dx, {tokens, hidden}, dtype, "rms_norm_backward.dx");
  expect_like(args.gamma_grad, {hidden}, stat_dtype, "rms_norm_backward.gamma_grad");
  if (args.bias_grad) expect_like(args.bias_grad, {hidden}, stat_dtype, "rms_norm_backward.bias_grad");
  const Index blocks = ex.device() == Device::cpu ? cpu::row_blocks(tokens) : cuda::row_parts(tokens);
  const Index sums = ex.device() == Device::cuda && args.bias_grad ? 2 : 1;
  const Tensor parts = ex.tensor({blocks, sums, hidden}, stat_dtype);
  run_float(
      ex,
      {.name = "rms_norm_backward",
       .reads = {args.dy, args.x, args.gamma, args.rstd, args.residual, args.gamma_grad, args.bias_grad},
       .writes = {args.dx, args.gamma_grad, args.bias_grad},
       .scratch = parts},
      dtype, [args, parts]<class T>() { cpu::rms_norm_backward<T>(args, parts); },
      [args, parts](auto&, auto stream) { cuda::rms_norm_backward(stream, args, parts); });
}

}  // namespace megalith::ops
