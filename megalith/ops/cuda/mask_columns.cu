#include <algorithm>

#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/mask_columns_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kMaskThreads = 256;

/// A block takes a row. Writes the row's padding, reads its length.
template <class T>
__global__ void __launch_bounds__(kMaskThreads)
    mask_columns_kernel(T* z, const std::int32_t* lengths, Index columns, Index samples) {
  const Index row = blockIdx.x;
  for (Index c = lengths[row % samples] + Index{threadIdx.x}; c < columns; c += kMaskThreads)
    z[row * columns + c] = static_cast<T>(static_cast<float>(kMaskedNumber));
}

}  // namespace

void mask_columns(Stream stream, const MaskColumns& args) {
  dispatch_element(args.z.dtype(), [&]<class T>() {
    launch({stream, args.z.dim(0), kMaskThreads}, mask_columns_kernel<T>, pointer<T>(args.z),
           pointer<const std::int32_t>(args.lengths), args.z.dim(1), args.lengths.numel());
  });
}

}  // namespace megalith::ops::cuda
