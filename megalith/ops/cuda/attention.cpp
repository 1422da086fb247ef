#include "megalith/ops/cuda/attention.h"

#include "megalith/ops/cuda/cudnn_attention.h"
#include "megalith/ops/cuda/tiled_attention.h"

namespace megalith::ops::cuda {
namespace {

template <class Args>
bool is_for_cudnn(const Args& args) {
  const Index head_dim = args.out.dim(1) / args.num_heads;
  return has_cudnn() && args.qkv.dtype() != DType::f32 && args.dropout.probability == 0 && head_dim % 8 == 0 &&
         head_dim <= 128;
}

}  // namespace

void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch) {
  if (args.batch == 0) return;
  if (is_for_cudnn(args)) return cudnn_attention_forward(ex, stream, args, scratch);
  tiled_attention_forward(stream, args);
}

void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  if (args.batch == 0) return;
  if (is_for_cudnn(args)) return cudnn_attention_backward(ex, stream, args, scratch);
  tiled_attention_backward(stream, args, scratch);
}

}  // namespace megalith::ops::cuda
