#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Scratch of the forward pass, in bytes: cuDNN's kernels for Hopper ask for less.
inline constexpr Index kAttentionForwardScratch = Index{1} << 20;

template <class Args>
AttentionShape shape_of(const Args& args) {
  return {args.qkv.dtype(),        args.batch, args.seq_len, args.num_heads, args.out.dim(1) / args.num_heads,
          args.dropout.probability};
}

/// Whether cuDNN has a kernel: bf16 or f16, heads of at most 128 in steps of 8, no dropout, as its random numbers are
/// not ours.
inline bool has_library_kernel(const AttentionShape& shape) {
  return shape.dtype != DType::f32 && shape.dropout == 0 && shape.head_dim % 8 == 0 && shape.head_dim <= 128;
}

/// Scratch of the backward pass. cuDNN sums dq in f32 over blocks of keys; for the same bits every time it keeps those
/// sums apart (deterministic_attention_bytes()). Our own kernel needs one f32 a query.
inline Index attention_backward_scratch_bytes(Determinism determinism, const AttentionShape& shape) {
  const Index queries = shape.batch * shape.num_heads * round_up(shape.seq_len, 128);
  if (!has_library_kernel(shape)) return queries * size_of(DType::f32);
  const Index sums = queries * (round_up(shape.head_dim, 64) + 2) * size_of(DType::f32);
  const Index apart = determinism == Determinism::required ? deterministic_attention_bytes(shape) : 0;
  return sums + apart + (Index{1} << 20);
}

/// By cuDNN where it is built in and has a kernel, else by tiled_attention.h.
void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch);
void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch);

}  // namespace megalith::ops::cuda
