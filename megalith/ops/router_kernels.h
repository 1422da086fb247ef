#pragma once
#include "megalith/ops/router.h"

namespace megalith::ops {

// logits, probabilities, d_logits, d_probabilities: (T, E) : (E, 1).  experts, weights, d_weights: (T, K) : (K, 1).
// bias: (E) : (1).  counts: (Q, E) : (E, 1).

namespace cpu {
void skew_logits(const Tensor& logits, double skew);
/// Throws InputError for a given expert outside [0, E).
void router_forward(const RouterForward& args);
void router_backward(const RouterBackward& args);
}  // namespace cpu

namespace cuda {
void skew_logits(Stream stream, const Tensor& logits, double skew);
/// A given expert outside [0, E) is not counted.
void router_forward(Stream stream, const RouterForward& args);
void router_backward(Stream stream, const RouterBackward& args);
}  // namespace cuda

}  // namespace megalith::ops
