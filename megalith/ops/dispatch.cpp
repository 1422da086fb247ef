#include "megalith/ops/dispatch.h"

#include "megalith/base/str.h"

namespace megalith::ops {

void throw_not_built(Device device, std::string_view op) {
  throw BackendError(
      str("[", op, "] device = ", device == Device::cuda ? "cuda" : "cpu", ": this build has no kernel for it"));
}

void expect_float(const Tensor& tensor, std::string_view op) {
  dispatch_float(tensor.dtype(), op, []<class T>() {});
}

}  // namespace megalith::ops
