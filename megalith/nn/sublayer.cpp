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
    const FirstGrad first = backward_to_first(ex, microbatch, kept);
    InFlight sums = first_.backward_input(ex, first.dy, grads.dx);
    kept.entered.x.messages.wait(ex);
    first_.backward_weight(ex, first.dy, kept.entered.x.x, microbatch.weight_grads, first.bias);
    last_.backward_weight_at(WeightGradTime::beside_sum, ex, kept.entered, kept.last, microbatch.weight_grads);
    sums.wait(ex);
  } else {
    last_.backward_weight_at(WeightGradTime::beside_gather, ex, kept.entered, kept.last, microbatch.weight_grads);
  }
}

void TensorParallelSublayer::first_gemm_again(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  TensorParallel::InRegion& x = saved.entered.x;
  x.messages.wait(ex);
  Microbatch again = microbatch;
  const int count = first_.sub_batches();
  for (again.sub_batch = {0, count}; again.sub_batch.index < count; ++again.sub_batch.index) {
    saved.first.in_region[static_cast<std::size_t>(again.sub_batch.index)] = again.sub_batch.of(x.x);
    first_gemm(ex, again, saved);
  }
}

}  // namespace megalith::nn
