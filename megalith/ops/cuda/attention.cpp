#include "megalith/ops/cuda/attention.h"

#include "megalith/ops/cuda/cudnn_attention.h"
#include "megalith/ops/cuda/tiled_attention.h"

namespace megalith::ops::cuda {

void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch) {
  if (args.batch == 0) return;
  if (has_cudnn() && has_library_kernel(shape_of(args))) return cudnn_attention_forward(ex, stream, args, scratch);
  tiled_attention_forward(stream, args);
}

void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  if (args.batch == 0) return;
  if (has_cudnn() && has_library_kernel(shape_of(args))) return cudnn_attention_backward(ex, stream, args, scratch);
  tiled_attention_backward(stream, args, scratch);
}

}  // namespace megalith::ops::cuda
