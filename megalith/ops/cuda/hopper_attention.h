#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Attention by tensor-core products of warp groups, for compute capability 9.0: what cuDNN does not cover, with
/// dropout above all. Formulas, shapes and the numbering of dropout: ops/attention.h. bf16 or f16, head_dim 64 or 128,
/// samples of up to 131,072 tokens, every mask and any groups of heads, without documents. Sums are f32. Probabilities
/// and the gradients of scores are rounded before they enter a product. Padding of qkv and dout is overwritten by
/// zeros. Bits are the same in every run. The StepState is read on the GPU when the kernels run. Throws BackendError
/// for an error of CUDA. Source: Dao et al. 2022, arXiv:2205.14135; Shah et al. 2024, arXiv:2407.08608.

/// Whether the current GPU and this build have the kernels, and they cover the shape.
bool is_for_hopper_attention(const AttentionShape& shape);

void hopper_attention_forward(Stream stream, const AttentionForward& args);

/// Scratch: hopper_attention_scratch_bytes(), aligned to 16 bytes.
void hopper_attention_backward(Stream stream, const AttentionBackward& args, const Tensor& scratch);

/// Allows the kernels of a pass their shared memory, before the first step, because graphs hold kernels.
void prepare_hopper_attention_forward(const AttentionShape& shape);
void prepare_hopper_attention_backward(const AttentionShape& shape);
inline void prepare_hopper_attention(AttentionPass pass, const AttentionShape& shape) {
  return pass == AttentionPass::forward ? prepare_hopper_attention_forward(shape)
                                        : prepare_hopper_attention_backward(shape);
}

}  // namespace megalith::ops::cuda
