#pragma once
#include <string_view>
#include <utility>

#include "megalith/tensor/exec.h"

namespace megalith::ops {

/// The device has no kernel for this op in this build.
[[noreturn]] void throw_not_built(Device device, std::string_view op);

/// Throws BackendError for an element type without kernels.
void expect_float(const Tensor& tensor, std::string_view op);

/// `tensor` must have this shape and dtype. Throws ShapeError naming `what` = "op.argument".
inline void expect_like(const Tensor& tensor, const Shape& shape, DType dtype, std::string_view what) {
  expect_shape(tensor, shape, what);
  expect_dtype(tensor, dtype, what);
}

/// The one line between checks and kernels: hands the op to `ex` and calls kernel.operator()<T>(), T the type of
/// `dtype`.
template <class Kernel>
void run_float(Exec& ex, const OpInfo& op, DType dtype, Kernel kernel) {
  ex.run(op, [name = op.name, dtype, kernel = std::move(kernel)](Exec& exec, Stream) {
    if (exec.device() != Device::cpu) throw_not_built(exec.device(), name);
    dispatch_float(dtype, name, kernel);
  });
}

}  // namespace megalith::ops
