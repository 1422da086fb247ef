#include "megalith/ops/cpu/isa/table.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

template <class T>
Kernels<T> table() {
  return {.elementwise = elementwise_kernels<T>(),
          .norm = norm_kernels<T>(),
          .softmax = softmax_kernels<T>(),
          .optimizer = optimizer_kernels<T>(),
          .gemm = gemm_kernels<T>()};
}
template Kernels<float> table();
template Kernels<double> table();

}  // namespace megalith::ops::cpu::MEGALITH_ISA
