#pragma once
#include "megalith/ops/router_losses.h"

namespace megalith::ops::cpu {

/// parts: scratch [Q, run_parts, E]
template <class T>
void sum_probabilities(const SumProbabilities& args, const Tensor& parts);
template <class T>
void load_loss(const LoadLoss& args);
template <class T>
void load_loss_backward(const LoadLossBackward& args);
/// squares: scratch [T]
template <class T>
void z_loss(const ZLoss& args, const Tensor& squares);
template <class T>
void z_loss_backward(const ZLossBackward& args);

}  // namespace megalith::ops::cpu
