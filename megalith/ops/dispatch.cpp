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

void expect_wide(const Exec& ex, const Tensor& tensor, std::string_view op, std::string_view what) {
  expect_dtype(tensor, statistics_dtype(tensor.dtype()), what);
  expect_float(ex, tensor, op);
}

void expect_vocabulary(Index first_id, Index vocab_size, std::string_view op) {
  if (first_id >= 0 && vocab_size >= 1) return;
  throw ShapeError(str("[", op, "] first_id, vocab_size = ", first_id, ", ", vocab_size,
                       ": first_id must be at least 0, vocab_size at least 1"));
}

}  // namespace megalith::ops
