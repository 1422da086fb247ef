#include "megalith/ops/cpu/isa/table.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

template <class T>
Kernels<T> table() {
  return {.elementwise = elementwise_kernels<T>(),
          .norm = norm_kernels<T>(),
          .softmax = softmax_kernels<T>(),
          .optimizer = optimizer_kernels<Arithmetic<T>>(),
          .gemm = gemm_kernels<T>()};
}
MEGALITH_FOR_STORED_TYPES(Kernels, table);

}  // namespace megalith::ops::cpu::MEGALITH_ISA
