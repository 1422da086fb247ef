#pragma once
#include <string>

#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Whether cuDNN was built in.
bool has_cudnn();
/// "9.19.0, cudnn-frontend 1.32.0", or "no".
std::string cudnn_version();

/// Causal attention by cuDNN's fused kernels on the packed qkv, without dropout; bf16 or f16. The backward pass is the
/// deterministic one where the Exec requires it. Graphs are built at the first use of a shape and kept. Throws
/// BackendError when cuDNN has no kernel for the shape or asks for more scratch than is planned.
void cudnn_attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch);
void cudnn_attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch);

}  // namespace megalith::ops::cuda
