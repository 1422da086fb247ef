#pragma once
#include "megalith/ops/router.h"

namespace megalith::ops::cpu {

/// Throws InputError for a given expert outside [0, E).
template <class T>
void router_forward(const RouterForward& args);
template <class T>
void router_backward(const RouterBackward& args);

}  // namespace megalith::ops::cpu
