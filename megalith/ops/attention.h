#pragma once
#include <string>

#include "megalith/ops/elementwise.h"
#include "megalith/ops/qkv_order.h"

namespace megalith::ops {

/// The largest D that a head may have on a GPU: the widest tile of our own kernels, and of the library's.
inline constexpr Index kMaxHeadDimOnGpu = 256;

/// Which keys within the sample's length a query attends to: itself and those before it, or all.
enum class AttentionMask : std::uint8_t { causal, full };

/// Self-attention over the heads of this rank: softmax(Q K^T / sqrt(D)) V with dropout on the probabilities.
///   qkv [B*S, (A + 2G)*D]: per token, per group: q of each of its A/G heads, then the k and the v that they share, of
///   D each. So with G = A it has q, k, v per head. In the order `parts` it has q of all heads, then all k, then all v
///   (and dqkv too). out [B*S, A*D]; log_sum_exp [B, A, S] (f64 for f64 tensors, else
///   f32).
/// Backward reads log_sum_exp instead of the S x S probabilities, which are never stored for a whole head at once.
/// Lengths: token i of sample b is padding where i >= lengths[b]. No token attends to padding. Its rows of out and dqkv
/// and its log_sum_exp are 0, even where qkv or dout hold NaN there. Those rows of qkv and dout may be overwritten by
/// zeros, which cuDNN needs there. A length below 0 counts as 0, one above S as S. At 0 the whole sample is padding.
/// Documents: several may lie in a sample, one after the other, and token i then attends to the tokens from
/// document_begin[b S + i], the first of its own document, to i. That is i, or what it is for token i - 1. The mask
/// must be causal, without lengths. On the CPU each document is computed as a sample of its own is, and nothing of
/// another one is read. It has the same bits, but for bf16 where the CPU multiplies bf16. Others are an InputError
/// there. On a GPU whole tiles outside of a document are left out; its numbers are finite where those of all documents
/// are. Dropout's elements are those of the sample. The host never reads a length or a start on a GPU, so a captured
/// graph stays valid for others.
///
/// Dropout's words for (sample b, local head a, query i, key j) are those of ops/kept_patch.h for (i, j) of head
///   (state.first_sample + first_row / S + b) * num_global_heads + first_head + a.
/// P(drop) is a multiple of 2^-16, and kept probabilities are scaled by 1 / P(keep).
/// dk and dv are sums over the heads of their group, in ascending order. Bits do not depend on the number of threads.
/// Sources: Vaswani et al. 2017, arXiv:1706.03762; tiling as in Dao et al. 2022, arXiv:2205.14135; groups: Ainslie et
/// al. 2023, arXiv:2305.13245.
struct AttentionForward {
  Tensor qkv;                                   // in
  Tensor out, log_sum_exp;                      // out
  Index batch = 0, seq_len = 0, num_heads = 0;  ///< num_heads: those of this rank
  Index first_head = 0, num_global_heads = 0;   ///< heads are those of q
  Dropout dropout;
  AttentionMask mask = AttentionMask::causal;
  Index num_kv_heads = 0;      ///< G of this rank, which divides num_heads; 0: as many as num_heads
  Tensor lengths = {};         // in  [B] i32; may be undefined: every sample has S tokens
  Tensor document_begin = {};  // in  [B*S] i32; may be undefined: a sample is one document
  QkvOrder order = QkvOrder::groups;
};
void attention_forward(Exec& ex, const AttentionForward& args);

/// dqkv [B*S, (A + 2G)*D] from dout [B*S, A*D]; recomputes the probabilities from qkv and log_sum_exp.
struct AttentionBackward {
  Tensor dout, qkv, out, log_sum_exp;  // in
  Tensor dqkv;                         // out
  Index batch = 0, seq_len = 0, num_heads = 0, first_head = 0, num_global_heads = 0;
  Dropout dropout;
  AttentionMask mask = AttentionMask::causal;
  Index num_kv_heads = 0;
  Tensor lengths = {};                // in
  Tensor document_begin = {};         // in
  QkvOrder order = QkvOrder::groups;  ///< of qkv and dqkv
};
void attention_backward(Exec& ex, const AttentionBackward& args);

/// Whether every sample has seq_len tokens, or a length of its own that only the device knows.
enum class SampleLengths : std::uint8_t { equal, given };

/// Whether a token attends to all tokens before it in its sample, or to those of its document, whose start only the
/// device knows.
enum class DocumentMask : std::uint8_t { none, given };

/// What an attention's memory follows from. Sizes are those of one call.
struct AttentionShape {
  DType dtype = DType::f32;
  Index batch = 0, seq_len = 0, num_heads = 0, head_dim = 0;
  double dropout = 0;
  AttentionMask mask = AttentionMask::causal;
  Index num_kv_heads = 0;  ///< 0: as many as num_heads
  SampleLengths lengths = SampleLengths::equal;
  DocumentMask documents = DocumentMask::none;
  QkvOrder order = QkvOrder::groups;
};

/// G of a call's arguments or of a shape.
template <class Args>
constexpr Index kv_heads_of(const Args& args) {
  return args.num_kv_heads == 0 ? args.num_heads : args.num_kv_heads;
}

/// What a build has for attention on GPUs.
struct AttentionBuild {
  bool has_cuda = false, has_cudnn = false;
};
/// What this build has.
AttentionBuild attention_build();
/// Whether a GPU's library, cuDNN, is tried for a shape (cuda/attention.h) before our own kernels. It must be bf16 or
/// f16, with heads of at most 256 in steps of 8 and samples of two tokens or more. It must have no dropout, because
/// cuDNN's random numbers are not ours. Where cuDNN is called per sample, a sample's log_sum_exp must be a multiple of
/// 16 bytes. It must have no documents: what cuDNN has for them are offsets of a number of sequences that a graph
/// fixes. A build without CUDA only plans for other machines, so it answers as a build with cuDNN.
bool is_for_attention_library(const AttentionShape& shape, const AttentionBuild& build = attention_build());

enum class AttentionPass : std::uint8_t { forward, backward };
/// How a pass runs on a GPU.
struct AttentionWay {
  bool by_library = false;
  Index scratch_bytes = 0;
  /// The library's name for it, with the library's version; ours are "megalith" and "megalith for Hopper".
  std::string kernel;
  std::string refusal;  ///< why the library, where it was tried, does not run it
};
/// The way on the GPU that the calling thread uses. The library is queried once per process and shape. Without a GPU,
/// as in a plan made elsewhere, the answer is a guess: the library of an H100 runs it.
AttentionWay attention_way(AttentionPass pass, const AttentionShape& shape, Determinism determinism);

/// A pass is this many calls of the library, one after the other. There is one per sample where there are several
/// groups of several heads in the order of groups (cuda/cudnn_attention.cpp gives the reason), else 1.
Index num_library_calls(const AttentionShape& shape);

/// The order in which attention over the shape reads heads that rope() brings into it. Parts where that spares calls of
/// a GPU's library, else groups.
QkvOrder attended_order(Device device, const AttentionShape& shape, const AttentionBuild& build = attention_build());

/// Bytes of scratch that the backward pass takes on a GPU only to give the same bits every time. Where the library's
/// kernel runs, it is 2 bytes for every query and key of one head of one call. Elsewhere it is 0.
Index deterministic_attention_bytes(const AttentionShape& shape, const AttentionBuild& build = attention_build());

}  // namespace megalith::ops
