#pragma once
#include <algorithm>

#include "megalith/ops/matmul.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops {

// op(a): (M, K) : (K, 1), transposed (1, M).  op(b): (K, N) : (N, 1), transposed (1, K).  c: (M, N) : (N, 1).
// bias: (N) : (1).  bias_grad: (M) : (1).  parts, scratch for bias_grad: (row_parts(K), M) : (M, 1) f32 (f64 for f64).
// matmul_gelu: x (T, K) : (K, 1), w (F, K) : (K, 1), z, y (T, F) : (F, 1), bias (F) : (1).
// matmul_gelu_backward: dy (T, N) : (N, 1), w (N, F) : (F, 1), z, dz (T, F) : (F, 1), bias_grad (F) : (1),
// parts (parts, F) : (F, 1), on a GPU matmul_gelu_backward_parts(T).
// matmul_swiglu: x (T, K) : (K, 1), w (F, 2, K) : (2 K, K, 1), z (T, F, 2) : (2 F, 2, 1), y (T, F) : (F, 1).
// matmul_swiglu_backward: dy (T, N) : (N, 1), w (N, F) : (F, 1), z, dz (T, F, 2) : (2 F, 2, 1), y, or
// undefined, and dh, scratch or undefined where one kernel does it, (T, F) : (F, 1).

namespace cpu {
void matmul(const Matmul& args, const Tensor& parts);
void batched_matmul(const BatchedMatmul& args);
void matmul_gelu(const MatmulGelu& args);
void matmul_gelu_backward(const MatmulGeluBackward& args, const Tensor& parts);
void matmul_swiglu(const MatmulSwiglu& args);
void matmul_swiglu_backward(const MatmulSwigluBackward& args, const Tensor& dh);
}  // namespace cpu

namespace cuda {
/// Runs by cuBLASLt (gemm.h), with the additions in its epilogues where it has such a kernel for the shape. Otherwise
/// our own kernels follow it. Sums are f32; f32 inputs are not rounded to tf32.
void matmul(Exec& ex, Stream stream, const Matmul& args, const Tensor& parts);
void batched_matmul(Exec& ex, Stream stream, const BatchedMatmul& args);
/// Rows of dz that one row of parts of gelu_product_backward() sums.
inline constexpr Index kGeluProductRows = 128;
inline Index gelu_product_parts(Index rows) { return ceil_div(rows, kGeluProductRows); }
inline Index matmul_gelu_backward_parts(Index rows) { return std::max(row_parts(rows), gelu_product_parts(rows)); }
/// Both run by our own kernel on a GPU that it is written for (gelu_product.h), else as matmul().
void matmul_gelu(Exec& ex, Stream stream, const MatmulGelu& args);
void matmul_gelu_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts);
/// in_one, or no dh: the kernel of grouped GEMMs, with one group (grouped_product.h). Else as matmul().
void matmul_swiglu(Exec& ex, Stream stream, const MatmulSwiglu& args, bool in_one);
void matmul_swiglu_backward(Exec& ex, Stream stream, const MatmulSwigluBackward& args, const Tensor& dh);
}  // namespace cuda

}  // namespace megalith::ops
