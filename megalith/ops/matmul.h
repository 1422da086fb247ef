#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

enum class Write : std::uint8_t { overwrite, accumulate };
enum class Transpose : std::uint8_t { no, yes };
/// Multiprocessors that a GEMM leaves free on a GPU, for what runs beside it. `communication`: as many as
/// start_libraries() (library.h) was given. A GEMM that takes all of them keeps communication from starting.
enum class SmMargin : std::uint8_t { none, communication };

/// c = op(a) op(b) [+ bias in every row], or c += for Write::accumulate. op transposes where asked.
///   op(a) [M, K], op(b) [K, N], c [M, N]; a and b of one dtype, c too, or f32 where theirs is bf16 or f16: sums are
///   f32 and rounded once. M, N, K may be 0 (K = 0 gives zeros). bias [N] of a's dtype (Write::overwrite only).
///   bias_grad [M] f32 (f64 for f64) += sum over k of op(a): with a = dy transposed, the gradient of a bias, taken
///   while dy passes anyway.
/// Bits do not depend on the number of threads: the product is cut into blocks by its shape alone; on a GPU they follow
/// from the algorithm chosen for the shape.
/// Throws ShapeError.
struct Matmul {
  Tensor a, b;            // in
  Tensor bias = {};       // in; may be undefined
  Tensor c;               // out
  Tensor bias_grad = {};  // out, accumulated; may be undefined
  Transpose transpose_a = Transpose::no, transpose_b = Transpose::no;
  Write write = Write::overwrite;
  SmMargin sm_margin = SmMargin::none;
};
void matmul(Exec& ex, const Matmul& args);

/// The first half of an MLP: z = x w^T + bias; y = gelu(z), as in bias_gelu (elementwise.h).
///   x [T, K], w [F, K], bias [F], z, y [T, F]; all of one dtype. z is what backward reads.
struct MatmulGelu {
  Tensor x, w, bias;  // in
  Tensor z, y;        // out
  SmMargin sm_margin = SmMargin::none;
};
void matmul_gelu(Exec& ex, const MatmulGelu& args);

/// The way back through gelu: dz = (dy w) * gelu'(z); bias_grad [F] += sum of the rows of dz, f32 (f64 for f64).
///   dy [T, N], w [N, F], z, dz [T, F]
struct MatmulGeluBackward {
  Tensor dy, w, z;   // in
  Tensor dz;         // out
  Tensor bias_grad;  // out, accumulated
  SmMargin sm_margin = SmMargin::none;
};
void matmul_gelu_backward(Exec& ex, const MatmulGeluBackward& args);

}  // namespace megalith::ops
