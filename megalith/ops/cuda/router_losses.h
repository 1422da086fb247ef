#pragma once
#include "megalith/ops/router_losses.h"

namespace megalith::ops::cuda {

/// parts: scratch [Q, run_parts, E]
void sum_probabilities(Stream stream, const SumProbabilities& args, const Tensor& parts);
void load_loss(Stream stream, const LoadLoss& args);
void load_loss_backward(Stream stream, const LoadLossBackward& args);
/// squares: scratch [T]
void z_loss(Stream stream, const ZLoss& args, const Tensor& squares);
void z_loss_backward(Stream stream, const ZLossBackward& args);

}  // namespace megalith::ops::cuda
