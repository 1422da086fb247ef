#pragma once
#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

// One per source of cpu/isa/, for float and double; table.cpp puts them together.
template <class T>
ElementwiseKernels<T> elementwise_kernels();
template <class T>
NormKernels<T> norm_kernels();
template <class T>
SoftmaxKernels<T> softmax_kernels();
template <class T>
OptimizerKernels<T> optimizer_kernels();
template <class T>
GemmKernels<T> gemm_kernels();

template <class T>
Kernels<T> table();

}  // namespace megalith::ops::cpu::MEGALITH_ISA
