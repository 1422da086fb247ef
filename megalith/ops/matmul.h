#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

enum class Write : std::uint8_t { overwrite, accumulate };
enum class Transpose : std::uint8_t { no, yes };
/// The SM margin of a GEMM on a GPU: the SMs that it leaves free for concurrent work. `communication`: as many as
/// start_libraries() (library.h) was given. If a GEMM took all SMs, communication could not start.
enum class SmMargin : std::uint8_t { none, communication };

/// c = op(a) op(b) [+ bias in every row], or c += with Write::accumulate. op transposes if requested.
///   op(a) [M, K], op(b) [K, N], c [M, N]. a and b have one dtype. c has it, too, or f32 if it is bf16 or f16: sums are
///   f32 and rounded once. M, N, K may be 0 (K = 0 gives zeros). bias [N] has a's dtype (Write::overwrite only).
///   bias_grad [M] f32 (f64 for f64) += sum over k of op(a). With a = dy transposed it is the gradient of a bias,
///   computed in the same pass over dy.
/// Bits do not depend on the number of threads: the GEMM is cut into blocks by its shape alone. On a GPU they depend on
/// the algorithm that is chosen for the shape.
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

/// c[s] = op(a[s]) op(b[s]) for S matrices of one shape, as S calls of matmul() with Write::overwrite, in one launch on
/// GPUs. a, b, c [S, ...] have one dtype. Throws ShapeError.
struct BatchedMatmul {
  Tensor a, b;  // in
  Tensor c;     // out
  Transpose transpose_a = Transpose::no, transpose_b = Transpose::no;
  /// Matrix `s` of the batch.
  Matmul of(Index s) const;
};
void batched_matmul(Exec& ex, const BatchedMatmul& args);

/// GELU in its tanh form, or as z (1 + erf(z / sqrt(2))) / 2 (elementwise.h).
enum class GeluForm : std::uint8_t { tanh, erf };

/// The first half of an MLP: z = x w^T + bias; y = gelu(z), as in bias_gelu (elementwise.h).
///   x [T, K], w [F, K], bias [F], z, y [T, F]; all of one dtype. Backward reads z.
struct MatmulGelu {
  Tensor x, w, bias;  // in
  Tensor z, y;        // out
  GeluForm form = GeluForm::tanh;
  SmMargin sm_margin = SmMargin::none;
};
void matmul_gelu(Exec& ex, const MatmulGelu& args);

/// The backward pass through GELU: dz = (dy w) * gelu'(z); bias_grad [F] += sum of the rows of dz, f32 (f64 for f64).
///   dy [T, N], w [N, F], z, dz [T, F]
struct MatmulGeluBackward {
  Tensor dy, w, z;   // in
  Tensor dz;         // out
  Tensor bias_grad;  // out, accumulated
  GeluForm form = GeluForm::tanh;
  SmMargin sm_margin = SmMargin::none;
};
void matmul_gelu_backward(Exec& ex, const MatmulGeluBackward& args);

/// The first half of a gated MLP: z = x w^T, the gate and the up of each of F units side by side; y = silu(gate) up of
/// the rounded z, as in swiglu (swiglu.h). On a Hopper GPU one kernel does both in 16 bits, where grouped GEMMs have it
/// (grouped_kernel_fit()), for 512 rows and more.
///   x [T, K], w [2F, K], z [T, 2F], y [T, F]; all of one dtype. Backward reads z.
struct MatmulSwiglu {
  Tensor x, w;  // in
  Tensor z, y;  // out
  SmMargin sm_margin = SmMargin::none;
};
void matmul_swiglu(Exec& ex, const MatmulSwiglu& args);

/// The backward pass through it: dz is that of swiglu_backward (swiglu.h) from dh = dy w, which the kernel does not
/// round. Other backends take T F numbers of scratch for dh. Where y was not kept, it is made again, with the same
/// bits: the kernel has it at hand, and others read z once more.
///   dy [T, N], w [N, F], z, dz [T, 2F], y [T, F]
struct MatmulSwigluBackward {
  Tensor dy, w, z;  // in
  Tensor dz;        // out
  Tensor y = {};    // out; may be undefined
  SmMargin sm_margin = SmMargin::none;
};
void matmul_swiglu_backward(Exec& ex, const MatmulSwigluBackward& args);

}  // namespace megalith::ops
