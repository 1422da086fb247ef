#pragma once
#include "megalith/ops/init.h"

namespace megalith::ops::cuda {

void initialise(Stream stream, const InitialValues& values, const Tensor& to, std::uint64_t seed);

}  // namespace megalith::ops::cuda
