#pragma once
#include "megalith/ops/attention.h"
#include "megalith/ops/kept_patch.h"

namespace megalith::ops {

// qkv, dqkv: (B, S, G, A/G + 2, D) : (S W, W, (A/G + 2) D, D, 1), W = (A + 2G) D: per kv head its q heads, k, v.
// In parts: q (B, S, A, D) : (S W, W, D, 1), k and v (B, S, G, D) with these strides, A D and (A + G) D on.
// out, dout: (B, S, A, D) : (S A D, A D, D, 1).  log_sum_exp: (B, A, S) : (A S, S, 1).  lengths: (B) : (1).
// document_begin: (B, S) : (S, 1).  scratch: bytes.

namespace cpu {
/// Scratch for tensors in 16 bits, which are computed in f32; 0 for others.
Index attention_forward_scratch_bytes(const AttentionForward& args);
Index attention_backward_scratch_bytes(const AttentionBackward& args);

void attention_forward(const AttentionForward& args, const Tensor& scratch);
void attention_backward(const AttentionBackward& args, const Tensor& scratch);
}  // namespace cpu

namespace cuda {
template <class Args>
AttentionShape shape_of(const Args& args) {
  return {.dtype = args.qkv.dtype(),
          .batch = args.batch,
          .seq_len = args.seq_len,
          .num_heads = args.num_heads,
          .head_dim = args.out.dim(1) / args.num_heads,
          .dropout = args.dropout.probability,
          .mask = args.mask,
          .num_kv_heads = kv_heads_of(args),
          .lengths = args.lengths ? SampleLengths::given : SampleLengths::equal,
          .documents = args.document_begin ? DocumentMask::given : DocumentMask::none,
          .order = args.order};
}

/// Whether our kernels for Hopper (cuda/hopper_attention.h) cover a shape.
inline bool is_hopper_attention_shape(const AttentionShape& shape) {
  return (shape.dtype == DType::bf16 || shape.dtype == DType::f16) && (shape.head_dim == 64 || shape.head_dim == 128) &&
         shape.documents == DocumentMask::none && shape.seq_len <= kMaxKeptSeqLen;
}
/// Their scratch: two f32 per query, of whole tiles of 64, for the backward pass.
inline Index hopper_attention_scratch_bytes(AttentionPass pass, const AttentionShape& shape) {
  if (pass == AttentionPass::forward) return 0;
  return shape.batch * shape.num_heads * round_up(shape.seq_len, 64) * 2 * size_of(DType::f32);
}

/// Scratch of our kernels for any GPU: the backward pass needs one f32 per query, and one i32 per token of documents.
inline Index own_attention_scratch_bytes(AttentionPass pass, const AttentionShape& shape) {
  if (pass == AttentionPass::forward) return 0;
  const Index ends = shape.documents == DocumentMask::given ? shape.batch * shape.seq_len * size_of(DType::i32) : 0;
  return shape.batch * shape.num_heads * shape.seq_len * size_of(DType::f32) + ends;
}

/// The scratch of cuDNN's kernels for Hopper, for a machine without a GPU. Forward it is under 1 MiB. Backward sums dq
/// in f32 over blocks of keys. For the same bits every time it keeps those sums apart
/// (deterministic_attention_bytes()). Where heads share keys, it keeps dk and dv of each head before it sums them.
/// Calls use the same scratch in turn.
inline Index guessed_attention_scratch_bytes(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  constexpr Index kRest = Index{1} << 20;
  if (pass == AttentionPass::forward) return kRest;
  const Index heads = shape.batch * shape.num_heads / num_library_calls(shape);
  const Index queries = heads * round_up(shape.seq_len, 128);
  const Index sums = queries * (round_up(shape.head_dim, 64) + 2) * size_of(DType::f32);
  const Index apart = determinism == Determinism::required ? deterministic_attention_bytes(shape) : 0;
  const bool shares_keys = kv_heads_of(shape) != shape.num_heads;
  const Index of_heads = shares_keys ? 2 * heads * shape.seq_len * shape.head_dim * size_of(shape.dtype) : 0;
  return sums + apart + of_heads + kRest;
}

/// The kernels by which a pass runs: ours for any GPU, ours for Hopper, or the library's.
enum class AttentionKernels : std::uint8_t { own, hopper, library };

/// Which kernels, and how much scratch they need. It has no text, because every call requests it.
struct AttentionChoice {
  AttentionKernels kernels = AttentionKernels::own;
  Index scratch_bytes = 0;
};
/// The choice on the GPU that the calling thread uses.
AttentionChoice choose_attention(AttentionPass pass, const AttentionShape& shape, Determinism determinism);

/// Runs by cudnn_attention.h, hopper_attention.h or tiled_attention.h.
void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch,
                       AttentionKernels kernels);
void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch,
                        AttentionKernels kernels);
}  // namespace cuda

}  // namespace megalith::ops
