#include "megalith/ops/qk_head_norm.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/qk_head_norm_kernels.h"
#include "megalith/ops/qkv_layout.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops {

void qk_head_norm(Exec& ex, const QkHeadNorm& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_head_norm.qkv");
  const DType dtype = args.qkv.dtype();
  expect_like(args.gamma_q, {layout.head_dim}, dtype, "qk_head_norm.gamma_q");
  expect_like(args.gamma_k, {layout.head_dim}, dtype, "qk_head_norm.gamma_k");
  expect_like(args.out, args.qkv.shape(), dtype, "qk_head_norm.out");
  expect_like(args.rstd, {layout.rows, layout.normed()}, statistics_dtype(dtype), "qk_head_norm.rstd");
  run_kernel(
      ex, {.name = "qk_head_norm", .reads = {args.qkv, args.gamma_q, args.gamma_k}, .writes = {args.out, args.rstd}},
      [args] { cpu::qk_head_norm(args); }, [args](auto&, auto stream) { cuda::qk_head_norm(stream, args); });
}

void qk_head_norm_backward(Exec& ex, const QkHeadNormBackward& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_head_norm_backward.qkv");
  const DType dtype = args.qkv.dtype(), stat_dtype = statistics_dtype(dtype);
  expect_like(args.dout, args.qkv.shape(), dtype, "qk_head_norm_backward.dout");
  expect_like(args.gamma_q, {layout.head_dim}, dtype, "qk_head_norm_backward.gamma_q");
  expect_like(args.gamma_k, {layout.head_dim}, dtype, "qk_head_norm_backward.gamma_k");
  expect_like(args.rstd, {layout.rows, layout.normed()}, stat_dtype, "qk_head_norm_backward.rstd");
  expect_like(args.dqkv, args.qkv.shape(), dtype, "qk_head_norm_backward.dqkv");
  expect_like(args.gamma_q_grad, {layout.head_dim}, stat_dtype, "qk_head_norm_backward.gamma_q_grad");
  expect_like(args.gamma_k_grad, {layout.head_dim}, stat_dtype, "qk_head_norm_backward.gamma_k_grad");
  const Tensor parts = ex.tensor({row_parts(ex, layout.rows), 2, layout.head_dim}, stat_dtype);
  run_kernel(
      ex,
      {.name = "qk_head_norm_backward",
       .reads = {args.dout, args.qkv, args.gamma_q, args.gamma_k, args.rstd, args.gamma_q_grad, args.gamma_k_grad},
       .writes = {args.dqkv, args.gamma_q_grad, args.gamma_k_grad},
       .scratch = parts},
      [args, parts] { cpu::qk_head_norm_backward(args, parts); },
      [args, parts](auto&, auto stream) { cuda::qk_head_norm_backward(stream, args, parts); });
}

}  // namespace megalith::ops
