#pragma once
#include "megalith/ops/router.h"

namespace megalith::ops::cuda {

/// A given expert outside [0, E) is not counted.
void router_forward(Stream stream, const RouterForward& args);
void router_backward(Stream stream, const RouterBackward& args);

}  // namespace megalith::ops::cuda
