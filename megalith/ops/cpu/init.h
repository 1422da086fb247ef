#pragma once
#include "megalith/ops/init.h"

namespace megalith::ops::cpu {

template <class T>
void initialise(const InitialValues& values, const Tensor& to, std::uint64_t seed);
void cast(const Tensor& from, const Tensor& to);

}  // namespace megalith::ops::cpu
