#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cpu {

/// Scratch for tensors in 16 bits, which are computed in f32; 0 for others.
Index attention_forward_scratch_bytes(const AttentionForward& args);
Index attention_backward_scratch_bytes(const AttentionBackward& args);

template <class T>
void attention_forward(const AttentionForward& args, const Tensor& scratch);
template <class T>
void attention_backward(const AttentionBackward& args, const Tensor& scratch);

}  // namespace megalith::ops::cpu
