#include "megalith/tensor/cuda/shared_limit.h"

#include "megalith/tensor/cuda/check.h"

namespace megalith::cuda {

void allow_shared_memory(const void* kernel, int bytes, Carveout carveout) {
  static SharedLimits limits;
  int gpu = 0;
  check(cudaGetDevice(&gpu));
  limits.raise(gpu, kernel, bytes, [&](int most) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    if (carveout == Carveout::max) {
      check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    }
  });
}

}  // namespace megalith::cuda
