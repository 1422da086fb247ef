#include "megalith/ops/matmul.h"

#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/matmul_kernels.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops {
namespace {

/// Scratch for the sums of the columns of a [rows, columns] matrix.
Tensor column_sum_parts(Exec& ex, const Tensor& matrix, Index parts_on_gpus) {
  const Index blocks = ex.device() == Device::cpu ? cpu::row_blocks(matrix.dim(0)) : parts_on_gpus;
  return ex.tensor({blocks, matrix.dim(1)}, statistics_dtype(matrix.dtype()));
}

/// Whether a GEMM and its SwiGLU are one kernel: for fewer rows, as in generation, the library has smaller tiles.
bool is_one_kernel(const Exec& ex, DType dtype, Index rows, Index hidden, Index units) {
  constexpr Index kMinRows = 4 * kGroupedKernelRows;
  return rows >= kMinRows && hidden > 0 &&
         grouped_kernel_fit(ex.device(), dtype, hidden, units) == GroupedKernelFit::fits;
}

void check_options(const Matmul& args, Index m, Index n) {
  if (args.bias) {
    expect_like(args.bias, {n}, args.a.dtype(), "matmul.bias");
    if (args.write == Write::accumulate) throw ShapeError("[matmul] bias: needs Write::overwrite");
  }
  if (args.bias_grad) {
    expect_like(args.bias_grad, {m}, statistics_dtype(args.a.dtype()), "matmul.bias_grad");
    if (args.transpose_a == Transpose::no) throw ShapeError("[matmul] bias_grad: needs transpose_a");
  }
}

}  // namespace

void matmul(Exec& ex, const Matmul& args) {
  expect_float(ex, args.a, "matmul");
  const auto [m, n] = dims<2>(args.c, "matmul.c");
  const DType dtype = args.a.dtype();
  if (args.c.dtype() != dtype) expect_dtype(args.c, statistics_dtype(dtype), "matmul.c");
  const bool a_transposed = args.transpose_a == Transpose::yes, b_transposed = args.transpose_b == Transpose::yes;
  const Index k = dims<2>(args.a, "matmul.a")[a_transposed ? 0 : 1];
  expect_like(args.a, a_transposed ? Shape{k, m} : Shape{m, k}, dtype, "matmul.a");
  expect_like(args.b, b_transposed ? Shape{n, k} : Shape{k, n}, dtype, "matmul.b");
  check_options(args, m, n);
  const Tensor parts = args.bias_grad ? column_sum_parts(ex, args.a, cuda::row_parts(args.a.dim(0))) : Tensor();
  const Tensor& added = args.write == Write::accumulate ? args.c : args.bias;
  run_kernel(
      ex,
      {.name = "matmul",
       .reads = {args.a, args.b, added, args.bias_grad},
       .writes = {args.c, args.bias_grad},
       .scratch = parts},
      [args, parts] { cpu::matmul(args, parts); },
      [args, parts](auto& exec, auto stream) { cuda::matmul(exec, stream, args, parts); });
}

Matmul BatchedMatmul::of(Index s) const {
  const auto matrix = [s](const Tensor& all) { return all.rows(s, 1).reshaped({all.dim(1), all.dim(2)}); };
  return {.a = matrix(a), .b = matrix(b), .c = matrix(c), .transpose_a = transpose_a, .transpose_b = transpose_b};
}

void batched_matmul(Exec& ex, const BatchedMatmul& args) {
  constexpr Arguments kArguments{"batched_matmul"};
  expect_float(ex, args.a, "batched_matmul");
  const auto [count, m, n] = kArguments.dims<3>(args.c, "c");
  const DType dtype = args.a.dtype();
  const bool a_transposed = args.transpose_a == Transpose::yes, b_transposed = args.transpose_b == Transpose::yes;
  const Index k = kArguments.dims<3>(args.a, "a")[a_transposed ? 1 : 2];
  kArguments.like(args.c, {count, m, n}, dtype, "c");
  kArguments.like(args.a, a_transposed ? Shape{count, k, m} : Shape{count, m, k}, dtype, "a");
  kArguments.like(args.b, b_transposed ? Shape{count, n, k} : Shape{count, k, n}, dtype, "b");
  run_kernel(
      ex, {.name = "batched_matmul", .reads = {args.a, args.b}, .writes = {args.c}},
      [args] { cpu::batched_matmul(args); },
      [args](auto& exec, auto stream) { cuda::batched_matmul(exec, stream, args); });
}

void matmul_gelu(Exec& ex, const MatmulGelu& args) {
  expect_float(ex, args.x, "matmul_gelu");
  const DType dtype = args.x.dtype();
  const auto [tokens, k] = dims<2>(args.x, "matmul_gelu.x");
  const Index features = dims<2>(args.w, "matmul_gelu.w")[0];
  expect_like(args.w, {features, k}, dtype, "matmul_gelu.w");
  expect_like(args.bias, {features}, dtype, "matmul_gelu.bias");
  expect_like(args.z, {tokens, features}, dtype, "matmul_gelu.z");
  expect_like(args.y, {tokens, features}, dtype, "matmul_gelu.y");
  run_kernel(
      ex, {.name = "matmul_gelu", .reads = {args.x, args.w, args.bias}, .writes = {args.z, args.y}},
      [args] { cpu::matmul_gelu(args); }, [args](auto& exec, auto stream) { cuda::matmul_gelu(exec, stream, args); });
}

void matmul_gelu_backward(Exec& ex, const MatmulGeluBackward& args) {
  expect_float(ex, args.dy, "matmul_gelu_backward");
  const DType dtype = args.dy.dtype();
  const auto [tokens, n] = dims<2>(args.dy, "matmul_gelu_backward.dy");
  const Index features = dims<2>(args.w, "matmul_gelu_backward.w")[1];
  expect_like(args.w, {n, features}, dtype, "matmul_gelu_backward.w");
  expect_like(args.z, {tokens, features}, dtype, "matmul_gelu_backward.z");
  expect_like(args.dz, {tokens, features}, dtype, "matmul_gelu_backward.dz");
  expect_like(args.bias_grad, {features}, statistics_dtype(dtype), "matmul_gelu_backward.bias_grad");
  const Tensor parts = column_sum_parts(ex, args.dz, cuda::matmul_gelu_backward_parts(tokens));
  run_kernel(
      ex,
      {.name = "matmul_gelu_backward",
       .reads = {args.dy, args.w, args.z, args.bias_grad},
       .writes = {args.dz, args.bias_grad},
       .scratch = parts},
      [args, parts] { cpu::matmul_gelu_backward(args, parts); },
      [args, parts](auto& exec, auto stream) { cuda::matmul_gelu_backward(exec, stream, args, parts); });
}

void matmul_swiglu(Exec& ex, const MatmulSwiglu& args) {
  constexpr Arguments kArguments{"matmul_swiglu"};
  expect_float(ex, args.x, "matmul_swiglu");
  const DType dtype = args.x.dtype();
  const auto [tokens, k] = kArguments.dims<2>(args.x, "x");
  const Index units = kArguments.dims<2>(args.y, "y")[1];
  kArguments.like(args.w, {2 * units, k}, dtype, "w");
  kArguments.like(args.z, {tokens, 2 * units}, dtype, "z");
  kArguments.like(args.y, {tokens, units}, dtype, "y");
  run_kernel(
      ex, {.name = "matmul_swiglu", .reads = {args.x, args.w}, .writes = {args.z, args.y}},
      [args] { cpu::matmul_swiglu(args); },
      [args, in_one = is_one_kernel(ex, dtype, tokens, k, units)](auto& exec, auto stream) {
        cuda::matmul_swiglu(exec, stream, args, in_one);
      });
}

void matmul_swiglu_backward(Exec& ex, const MatmulSwigluBackward& args) {
  constexpr Arguments kArguments{"matmul_swiglu_backward"};
  expect_float(ex, args.dy, "matmul_swiglu_backward");
  const DType dtype = args.dy.dtype();
  const auto [tokens, n] = kArguments.dims<2>(args.dy, "dy");
  const Index units = kArguments.dims<2>(args.w, "w")[1];
  kArguments.like(args.w, {n, units}, dtype, "w");
  kArguments.like(args.z, {tokens, 2 * units}, dtype, "z");
  kArguments.like(args.dz, {tokens, 2 * units}, dtype, "dz");
  if (args.y) kArguments.like(args.y, {tokens, units}, dtype, "y");
  const Tensor dh = is_one_kernel(ex, dtype, tokens, n, units) ? Tensor() : ex.tensor({tokens, units}, dtype);
  run_kernel(
      ex,
      {.name = "matmul_swiglu_backward",
       .reads = {args.dy, args.w, args.z},
       .writes = {args.dz, args.y},
       .scratch = dh},
      [args, dh] { cpu::matmul_swiglu_backward(args, dh); },
      [args, dh](auto& exec, auto stream) { cuda::matmul_swiglu_backward(exec, stream, args, dh); });
}

}  // namespace megalith::ops
