#include "megalith/base/error.h"
#include "megalith/ops/cuda/cudnn_attention.h"

namespace megalith::ops::cuda {

bool has_cudnn() { return false; }
std::string cudnn_version() { return "no"; }

const CudnnAnswer& ask_cudnn(AttentionPass, const AttentionShape&, Determinism) {
  throw InternalError("[attention] this build has no cuDNN to ask");
}
void cudnn_attention_forward(Exec&, Stream, const AttentionForward&, const Tensor&) {
  throw InternalError("[attention] this build has no cuDNN");
}
void cudnn_attention_backward(Exec&, Stream, const AttentionBackward&, const Tensor&) {
  throw InternalError("[attention] this build has no cuDNN");
}

}  // namespace megalith::ops::cuda
