#include "megalith/ops/norm.h"

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/norm.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void layer_norm_forward(Exec& ex, const LayerNormForward& args) {
  expect_float(args.x, "layer_norm");
  const auto [tokens, hidden] = dims<2>(args.x, "layer_norm.x");
  const DType dtype = args.x.dtype();
  expect_like(args.gamma, {hidden}, dtype, "layer_norm.gamma");
  expect_like(args.beta, {hidden}, dtype, "layer_norm.beta");
  expect_like(args.y, {tokens, hidden}, dtype, "layer_norm.y");
  expect_like(args.mean, {tokens}, dtype, "layer_norm.mean");
  expect_like(args.rstd, {tokens}, dtype, "layer_norm.rstd");
  run_float(ex,
            {.name = "layer_norm", .reads = {args.x, args.gamma, args.beta}, .writes = {args.y, args.mean, args.rstd}},
            dtype, [args]<class T>() { cpu::layer_norm_forward<T>(args); });
}

void layer_norm_backward(Exec& ex, const LayerNormBackward& args) {
  expect_float(args.x, "layer_norm_backward");
  const auto [tokens, hidden] = dims<2>(args.x, "layer_norm_backward.x");
  const DType dtype = args.x.dtype();
  expect_like(args.dy, {tokens, hidden}, dtype, "layer_norm_backward.dy");
  expect_like(args.gamma, {hidden}, dtype, "layer_norm_backward.gamma");
  expect_like(args.mean, {tokens}, dtype, "layer_norm_backward.mean");
  expect_like(args.rstd, {tokens}, dtype, "layer_norm_backward.rstd");
  if (args.residual) expect_like(args.residual, {tokens, hidden}, dtype, "layer_norm_backward.residual");
  expect_like(args.dx, {tokens, hidden}, dtype, "layer_norm_backward.dx");
  run_float(ex,
            {.name = "layer_norm_backward",
             .reads = {args.dy, args.x, args.gamma, args.mean, args.rstd, args.residual},
             .writes = {args.dx}},
            dtype, [args]<class T>() { cpu::layer_norm_backward<T>(args); });
}

void layer_norm_weight_backward(Exec& ex, const LayerNormWeightBackward& args) {
  expect_float(args.x, "layer_norm_weight_backward");
  const auto [tokens, hidden] = dims<2>(args.x, "layer_norm_weight_backward.x");
  const DType dtype = args.x.dtype();
  expect_like(args.dy, {tokens, hidden}, dtype, "layer_norm_weight_backward.dy");
  expect_like(args.mean, {tokens}, dtype, "layer_norm_weight_backward.mean");
  expect_like(args.rstd, {tokens}, dtype, "layer_norm_weight_backward.rstd");
  expect_like(args.gamma_grad, {hidden}, dtype, "layer_norm_weight_backward.gamma_grad");
  expect_like(args.beta_grad, {hidden}, dtype, "layer_norm_weight_backward.beta_grad");
  const Tensor parts = ex.tensor({cpu::row_blocks(tokens), 2, hidden}, dtype);
  run_float(ex,
            {.name = "layer_norm_weight_backward",
             .reads = {args.dy, args.x, args.mean, args.rstd, args.gamma_grad, args.beta_grad},
             .writes = {args.gamma_grad, args.beta_grad, parts}},
            dtype, [args, parts]<class T>() { cpu::layer_norm_weight_backward<T>(args, parts); });
}

}  // namespace megalith::ops
