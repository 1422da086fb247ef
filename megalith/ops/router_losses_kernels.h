#pragma once
#include "megalith/ops/router_losses.h"

namespace megalith::ops {

// logits, probabilities, d_logits, d_probabilities: (T, E) : (E, 1).  sums, counts: (Q, E) : (E, 1).  loss: (1).
// parts, scratch: (Q, run_parts, E) : (run_parts E, E, 1).  squares, scratch: (T) : (1).

namespace cpu {
void sum_probabilities(const SumProbabilities& args, const Tensor& parts);
void load_loss(const LoadLoss& args);
void load_loss_backward(const LoadLossBackward& args);
void z_loss(const ZLoss& args, const Tensor& squares);
void z_loss_backward(const ZLossBackward& args);
}  // namespace cpu

namespace cuda {
void sum_probabilities(Stream stream, const SumProbabilities& args, const Tensor& parts);
void load_loss(Stream stream, const LoadLoss& args);
void load_loss_backward(Stream stream, const LoadLossBackward& args);
void z_loss(Stream stream, const ZLoss& args, const Tensor& squares);
void z_loss_backward(Stream stream, const ZLossBackward& args);
}  // namespace cuda

}  // namespace megalith::ops
