#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Scratch of the forward pass, in bytes: cuDNN's kernels for Hopper ask for less.
inline constexpr Index kAttentionForwardScratch = Index{1} << 20;

/// Whether cuDNN has a kernel: bf16 or f16, heads of at most 128 in steps of 8, no dropout, as its random numbers are
/// not ours.
template <class Args>
bool has_library_kernel(const Args& args) {
  const Index head_dim = args.out.dim(1) / args.num_heads;
  return args.qkv.dtype() != DType::f32 && args.dropout.probability == 0 && head_dim % 8 == 0 && head_dim <= 128;
}

/// Scratch of the backward pass. cuDNN sums dq in f32 over blocks of keys; for the same bits every time it keeps those
/// sums apart, which takes 2 bytes for every query and key of a head. Our own kernel needs one f32 a query.
inline Index attention_backward_scratch_bytes(Determinism determinism, const AttentionBackward& args) {
  const Index queries = args.batch * args.num_heads * round_up(args.seq_len, 128);
  if (!has_library_kernel(args)) return queries * size_of(DType::f32);
  const Index head_dim = args.out.dim(1) / args.num_heads;
  const Index sums = queries * round_up(head_dim, 64) * size_of(DType::f32) + queries * 2 * size_of(DType::f32);
  const Index apart = determinism == Determinism::required ? queries * round_up(args.seq_len, 128) * 2 : 0;
  return sums + apart + (Index{1} << 20);
}

/// By cuDNN where it is built in and has a kernel, else by tiled_attention.h.
void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch);
void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch);

}  // namespace megalith::ops::cuda
