#pragma once
#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

/// Instantiates FUNCTION, which returns TABLE<T>, for every type in which tensors of layers are stored.
#define MEGALITH_FOR_STORED_TYPES(TABLE, FUNCTION) \
  template TABLE<float> FUNCTION();                \
  template TABLE<double> FUNCTION();               \
  template TABLE<bfloat16> FUNCTION();             \
  template TABLE<float16> FUNCTION()

// One function per source of cpu/isa/, for every stored type (the optimizer's for float and double). table.cpp collects
// them.
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
