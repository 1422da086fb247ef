#include "megalith/ops/dispatch.h"

#include "megalith/base/str.h"

namespace megalith::ops {

void throw_not_built(Device device, std::string_view op) {
  throw BackendError(str("[", op, "] device = ", name_of(device), ": this build has no kernel for it"));
}

void expect_float(const Exec& ex, const Tensor& tensor, std::string_view op) {
  const DType dtype = tensor.dtype();
  const bool on_cpu = ex.device() == Device::cpu;
  if (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || (on_cpu && dtype == DType::f64)) return;
  throw BackendError(str("[", op, "] dtype = ", name_of(dtype), ": needs ", on_cpu ? "f64, " : "",
                         "f32, bf16 or f16 on ", on_cpu ? "the CPU" : "a GPU"));
}

}  // namespace megalith::ops
