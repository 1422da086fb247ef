#include "megalith/ops/qk_norm.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/qk_norm_kernels.h"
#include "megalith/ops/qkv_layout.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops {
namespace {

template <class Args>
void expect_totals(const Args& args, std::string_view op) {
  if (args.total_num_heads >= args.num_heads && args.total_num_kv_heads >= args.num_kv_heads) return;
  throw ShapeError(str("[", op, "] total_num_heads, total_num_kv_heads = ", args.total_num_heads, ", ",
                       args.total_num_kv_heads, ": must be at least num_heads, num_kv_heads = ", args.num_heads, ", ",
                       args.num_kv_heads));
}

}  // namespace

void qk_square_sums(Exec& ex, const QkSquareSums& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_square_sums.qkv");
  const DType dtype = args.qkv.dtype();
  expect_like(args.square_sums, {layout.rows, 2}, statistics_dtype(dtype), "qk_square_sums.square_sums");
  run_kernel(
      ex, {.name = "qk_square_sums", .reads = {args.qkv}, .writes = {args.square_sums}},
      [args] { cpu::qk_square_sums(args); }, [args](auto&, auto stream) { cuda::qk_square_sums(stream, args); });
}

void qk_norm(Exec& ex, const QkNorm& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_norm.qkv");
  expect_totals(args, "qk_norm");
  const DType dtype = args.qkv.dtype();
  expect_like(args.square_sums, {layout.rows, 2}, statistics_dtype(dtype), "qk_norm.square_sums");
  expect_like(args.gamma_q, {layout.num_heads() * layout.head_dim}, dtype, "qk_norm.gamma_q");
  expect_like(args.gamma_k, {layout.num_kv_heads * layout.head_dim}, dtype, "qk_norm.gamma_k");
  expect_like(args.out, args.qkv.shape(), dtype, "qk_norm.out");
  run_kernel(
      ex, {.name = "qk_norm", .reads = {args.qkv, args.square_sums, args.gamma_q, args.gamma_k}, .writes = {args.out}},
      [args] { cpu::qk_norm(args); }, [args](auto&, auto stream) { cuda::qk_norm(stream, args); });
}

void qk_norm_backward_sums(Exec& ex, const QkNormBackwardSums& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_norm_backward_sums.qkv");
  expect_totals(args, "qk_norm_backward_sums");
  const DType dtype = args.qkv.dtype(), stat_dtype = statistics_dtype(dtype);
  expect_like(args.dout, args.qkv.shape(), dtype, "qk_norm_backward_sums.dout");
  expect_like(args.square_sums, {layout.rows, 2}, stat_dtype, "qk_norm_backward_sums.square_sums");
  expect_like(args.gamma_q, {layout.num_heads() * layout.head_dim}, dtype, "qk_norm_backward_sums.gamma_q");
  expect_like(args.gamma_k, {layout.num_kv_heads * layout.head_dim}, dtype, "qk_norm_backward_sums.gamma_k");
  expect_like(args.g_xhat_sums, {layout.rows, 2}, stat_dtype, "qk_norm_backward_sums.g_xhat_sums");
  run_kernel(
      ex,
      {.name = "qk_norm_backward_sums",
       .reads = {args.dout, args.qkv, args.square_sums, args.gamma_q, args.gamma_k},
       .writes = {args.g_xhat_sums}},
      [args] { cpu::qk_norm_backward_sums(args); },
      [args](auto&, auto stream) { cuda::qk_norm_backward_sums(stream, args); });
}

void qk_norm_backward(Exec& ex, const QkNormBackward& args) {
  const QkvLayout layout = expect_layout(ex, args, "qk_norm_backward.qkv");
  expect_totals(args, "qk_norm_backward");
  const DType dtype = args.qkv.dtype(), stat_dtype = statistics_dtype(dtype);
  const Index q_columns = layout.num_heads() * layout.head_dim, k_columns = layout.num_kv_heads * layout.head_dim;
  expect_like(args.dout, args.qkv.shape(), dtype, "qk_norm_backward.dout");
  expect_like(args.square_sums, {layout.rows, 2}, stat_dtype, "qk_norm_backward.square_sums");
  expect_like(args.g_xhat_sums, {layout.rows, 2}, stat_dtype, "qk_norm_backward.g_xhat_sums");
  expect_like(args.gamma_q, {q_columns}, dtype, "qk_norm_backward.gamma_q");
  expect_like(args.gamma_k, {k_columns}, dtype, "qk_norm_backward.gamma_k");
  expect_like(args.dqkv, args.qkv.shape(), dtype, "qk_norm_backward.dqkv");
  expect_like(args.gamma_q_grad, {q_columns}, stat_dtype, "qk_norm_backward.gamma_q_grad");
  expect_like(args.gamma_k_grad, {k_columns}, stat_dtype, "qk_norm_backward.gamma_k_grad");
  const Tensor parts = ex.tensor({row_parts(ex, layout.rows), q_columns + k_columns}, stat_dtype);
  run_kernel(
      ex,
      {.name = "qk_norm_backward",
       .reads = {args.dout, args.qkv, args.square_sums, args.g_xhat_sums, args.gamma_q, args.gamma_k, args.gamma_q_grad,
                 args.gamma_k_grad},
       .writes = {args.dqkv, args.gamma_q_grad, args.gamma_k_grad},
       .scratch = parts},
      [args, parts] { cpu::qk_norm_backward(args, parts); },
      [args, parts](auto&, auto stream) { cuda::qk_norm_backward(stream, args, parts); });
}

}  // namespace megalith::ops
