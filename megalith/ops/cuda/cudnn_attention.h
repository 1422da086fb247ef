#pragma once
#include <string>

#include "megalith/ops/attention.h"

namespace megalith::ops::cuda {

/// Whether cuDNN was built in.
bool has_cudnn();
/// "9.19.0, cudnn-frontend 1.32.0", or "no".
std::string cudnn_version();

/// cuDNN's answer about a pass of a shape on a GPU.
struct CudnnAnswer {
  Index scratch_bytes = 0;
  std::string kernel;   ///< "cuDNN 9.19.0 eng10_k2=25_...": its version and its name for the plan
  std::string refusal;  ///< why it has no kernel; empty where it has one
};
/// The answer for the GPU that the calling thread uses. It is requested once per process, GPU and shape, which takes up
/// to a second. The reference stays valid.
const CudnnAnswer& ask_cudnn(AttentionPass pass, const AttentionShape& shape, Determinism determinism);

/// Attention by cuDNN's fused kernels on the packed qkv, without dropout; bf16 or f16. With lengths they first
/// overwrite the padding of qkv and dout by zeros. The backward pass is the deterministic one where the Exec requires
/// it. Graphs are built at the first use of a shape and kept. The shape must be one that ask_cudnn() does not refuse,
/// with the scratch of its answer. Throws BackendError elsewhere.
void cudnn_attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch);
void cudnn_attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch);

}  // namespace megalith::ops::cuda
