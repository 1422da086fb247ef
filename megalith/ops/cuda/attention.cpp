#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/cudnn_attention.h"
#include "megalith/ops/cuda/hopper_attention.h"
#include "megalith/ops/cuda/tiled_attention.h"
#include "megalith/tensor/cuda/device.h"

namespace megalith::ops::cuda {

AttentionChoice choose_attention(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  if (is_for_attention_library(shape)) {
    const CudnnAnswer& answer = ask_cudnn(pass, shape, determinism);
    if (answer.refusal.empty()) return {AttentionKernels::library, answer.scratch_bytes};
  }
  const bool is_rank = !megalith::cuda::sharers().empty();  // and this no plan for another GPU
  if (is_for_hopper_attention(shape)) {
    if (is_rank) prepare_hopper_attention(pass, shape);
    return {AttentionKernels::hopper, hopper_attention_scratch_bytes(pass, shape)};
  }
  if (is_rank) {
    if (pass == AttentionPass::forward)
      prepare_tiled_attention_forward(shape);
    else
      prepare_tiled_attention_backward(shape);
  }
  return {AttentionKernels::own, own_attention_scratch_bytes(pass, shape)};
}

void attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch,
                       AttentionKernels kernels) {
  if (args.batch == 0) return;
  if (kernels == AttentionKernels::library) return cudnn_attention_forward(ex, stream, args, scratch);
  if (kernels == AttentionKernels::hopper) return hopper_attention_forward(stream, args);
  tiled_attention_forward(stream, args);
}

void attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch,
                        AttentionKernels kernels) {
  if (args.batch == 0) return;
  if (kernels == AttentionKernels::library) return cudnn_attention_backward(ex, stream, args, scratch);
  if (kernels == AttentionKernels::hopper) return hopper_attention_backward(stream, args, scratch);
  tiled_attention_backward(stream, args, scratch);
}

}  // namespace megalith::ops::cuda
