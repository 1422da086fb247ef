#pragma once
#include "megalith/base/philox.h"
#include "megalith/ops/init.h"
#include "megalith/params/param_buffer.h"

namespace megalith::support {

/// Normal numbers, the same for the same (stream, index).
inline void fill_random(const Tensor& tensor, std::uint64_t stream, double std = 1.0) {
  const RandomSite site{.seed = stream};
  dispatch_float(tensor.dtype(), "fill_random", [&]<class T>() {
    for (Index i = 0; i < tensor.numel(); ++i)
      tensor.data<T>()[i] = converted<T>(std * site.normal(static_cast<std::uint64_t>(i)));
  });
}

/// Every parameter random (biases and norms too), as a function of global coordinates: all grids start equal.
inline void fill_params(ParamBuffer& params, double std = 0.3) {
  Exec ex;
  for (Param& param : params.params()) {
    const bool norm_gain = param.spec.init == Init::ones;
    param.spec.init = Init::normal;
    param.spec.init_std = std;
    ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.masters.whole, 99);
    if (!norm_gain) continue;
    dispatch_wide(param.value.dtype(), "fill_params", [&]<class T>() {
      for (T& value : param.value.span<T>()) value += T{1};
    });
  }
}

}  // namespace megalith::support
