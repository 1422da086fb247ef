#include <algorithm>

#include "megalith/ops/mask_columns_kernels.h"

namespace megalith::ops::cpu {

void mask_columns(const MaskColumns& args) {
  dispatch_float(args.z.dtype(), "mask_columns", [&]<class T>() {
    const Index rows = args.z.dim(0), columns = args.z.dim(1), samples = args.lengths.numel();
    const auto* lengths = args.lengths.data<std::int32_t>();
    T* z = args.z.data<T>();
    for (Index r = 0; r < rows; ++r) {
      const Index length = std::clamp<Index>(lengths[r % samples], 0, columns);
      std::fill(z + r * columns + length, z + (r + 1) * columns, converted<T>(kMaskedNumber));
    }
  });
}

}  // namespace megalith::ops::cpu
