#pragma once
#include <string>

#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// D that a head may have on a GPU: the widest tile of our own kernels, and of the library's.
inline constexpr Index kMaxHeadDimOnGpu = 256;

/// Causal self-attention over the heads of this rank: softmax(Q K^T / sqrt(D)) V with dropout on the probabilities.
///   qkv [B*S, A*3*D]: per token, per head: q, k, v of D each; out [B*S, A*D]; log_sum_exp [B, A, S] (f64 for f64
///   tensors, else f32), which backward reads instead of the S x S probabilities: those are never stored for a whole
///   head at once.
/// Dropout's global element of (sample b, local head a, query i, key j) is
///   (((state.first_sample + first_row / S + b) * num_global_heads + first_head + a) * S + i) * S + j.
/// Bits do not depend on the number of threads. Source: Vaswani et al. 2017, arXiv:1706.03762; tiling as in Dao et al.
/// 2022, arXiv:2205.14135.
struct AttentionForward {
  Tensor qkv;                                   // in
  Tensor out, log_sum_exp;                      // out
  Index batch = 0, seq_len = 0, num_heads = 0;  ///< num_heads: of this rank
  Index first_head = 0, num_global_heads = 0;
  Dropout dropout;
};
void attention_forward(Exec& ex, const AttentionForward& args);

/// dqkv [B*S, A*3*D] from dout [B*S, A*D]; recomputes the probabilities from qkv and log_sum_exp.
struct AttentionBackward {
  Tensor dout, qkv, out, log_sum_exp;  // in
  Tensor dqkv;                         // out
  Index batch = 0, seq_len = 0, num_heads = 0, first_head = 0, num_global_heads = 0;
  Dropout dropout;
};
void attention_backward(Exec& ex, const AttentionBackward& args);

/// What an attention's memory follows from. Sizes are those of one call.
struct AttentionShape {
  DType dtype = DType::f32;
  Index batch = 0, seq_len = 0, num_heads = 0, head_dim = 0;
  double dropout = 0;
};
/// What a build has for attention on GPUs.
struct AttentionBuild {
  bool has_cuda = false, has_cudnn = false;
};
/// Of this build.
AttentionBuild attention_build();
/// Whether a GPU's library, cuDNN, is asked for it (cuda/attention.h) and not our own kernel: bf16 or f16, heads of at
/// most 256 in steps of 8, samples of two tokens or more, no dropout, as its random numbers are not ours. A build
/// without CUDA only plans for others, so it answers for one with cuDNN.
bool is_for_attention_library(const AttentionShape& shape, const AttentionBuild& build = attention_build());

enum class AttentionPass : std::uint8_t { forward, backward };
/// How a pass runs on a GPU.
struct AttentionWay {
  bool by_library = false;
  Index scratch_bytes = 0;
  std::string kernel;   ///< the library's name for it, with the library's version; "megalith" for our own
  std::string refusal;  ///< why the library, which was asked, does not run it
};
/// On the GPU that the calling thread uses: the library is asked, once per process and shape. Where there is none, as
/// for a plan made elsewhere, a guess: the library of an H100 runs it.
AttentionWay attention_way(AttentionPass pass, const AttentionShape& shape, Determinism determinism);

/// Bytes of scratch that the backward pass takes on a GPU only to give the same bits every time: 2 for every query and
/// key of a head, where the library's kernel runs. 0 elsewhere.
Index deterministic_attention_bytes(const AttentionShape& shape, const AttentionBuild& build = attention_build());

}  // namespace megalith::ops
