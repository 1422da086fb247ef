#pragma once
#include "megalith/ops/masters.h"

namespace megalith::ops {

// Split masters (tensor/master_values.h). copy, values: (N) : (1), low: (N, 2) : (2, 1).

namespace cpu {
void join_masters(const MasterValues& masters, const Tensor& values);
void split_masters(const Tensor& values, const MasterValues& masters);
}  // namespace cpu

namespace cuda {
void join_masters(Stream stream, const MasterValues& masters, const Tensor& values);
void split_masters(Stream stream, const Tensor& values, const MasterValues& masters);
}  // namespace cuda

}  // namespace megalith::ops
