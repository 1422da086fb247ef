#pragma once
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/base/error.h"
#include "megalith/tensor/dtype.h"

namespace megalith::cuda {

/// Calls f.template operator()<T>() with the device's type of an activation.
template <class F>
void dispatch_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<__nv_bfloat16>();
    case DType::f16:
      return f.template operator()<__half>();
    default:
      throw InternalError("[cuda kernel] dtype = " + std::string(name_of(dtype)) + ": must be f32, bf16 or f16");
  }
}
/// The same, also for f64.
template <class F>
void dispatch_number(DType dtype, const F& f) {
  if (dtype == DType::f64) return f.template operator()<double>();
  dispatch_element(dtype, f);
}

}  // namespace megalith::cuda
