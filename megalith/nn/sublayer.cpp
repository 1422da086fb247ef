#include "megalith/nn/sublayer.h"

namespace megalith::nn {

InFlight TensorParallelSublayer::forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x,
                                         Sublayer::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  if (stage == 0) return first_.to_region(ex, x, kept.first, microbatch.sub_batch);
  if (stage == 1) {
    first_gemm(ex, microbatch, kept);
    return {};
  }
  local_work(ex, microbatch, kept);
  return last_.forward(ex, kept.last.x, kept.last, microbatch.sub_batch);
}

void TensorParallelSublayer::backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                                      Sublayer::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  if (stage == 0) {
    kept.entered = {last_.to_region_backward(ex, grads.dy.grad), first_.to_region_backward(ex, kept.first),
                    static_cast<bool>(grads.dy.bias_grad)};
  } else if (stage == 1) {
    backward_through(ex, microbatch, grads.dx, kept);
  } else {
    last_.backward_weight_at(WeightGradTime::beside_gather, ex, kept.entered, kept.last, microbatch.weight_grads);
  }
}

}  // namespace megalith::nn
