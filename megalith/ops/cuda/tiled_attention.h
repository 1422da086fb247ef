#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Attention on a GPU by our own kernels, for cases that cuDNN does not cover. These are dropout that is a function of
/// the global element, documents, f32, and machines without cuDNN. They support every mask, with lengths and without,
/// and any groups of heads. The causal mask without lengths and with keys for every head has kernels of its own, and so
/// have documents. Formulas, shapes and the numbering of dropout: ops/attention.h. qkv, out, dout, dqkv are all f32,
/// all bf16 or all f16; log_sum_exp f32; head_dim 1..256, any seq_len. Sums are f32. For bf16 and f16 the probabilities
/// and the gradients of the scores are rounded before they enter a product. They need compute capability 8.0, and 9.0
/// or 10.0 for f32 with head_dim > 128 (201 KiB of shared memory per block). The StepState is read on the GPU when the
/// kernels run. Bits are the same in every run. Throws BackendError for another dtype or head_dim, or for an error of
/// CUDA. Source: Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691.
void tiled_attention_forward(Stream stream, const AttentionForward& args);

/// Scratch: tiled_attention_backward_scratch_bytes(), of any dtype, aligned to 4 bytes.
void tiled_attention_backward(Stream stream, const AttentionBackward& args, const Tensor& scratch);
/// One f32 per query and head: rowsum(dout * out) [B, A, S]. Documents need one i32 per token more, for their ends.
Index tiled_attention_backward_scratch_bytes(Index batch, Index seq_len, Index num_heads);

/// Allows the kernels of a pass their shared memory, before the first step, because graphs hold kernels. Throws what
/// the pass throws.
void prepare_tiled_attention_forward(const AttentionShape& shape);
void prepare_tiled_attention_backward(const AttentionShape& shape);

}  // namespace megalith::ops::cuda
