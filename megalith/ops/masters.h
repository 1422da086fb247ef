#pragma once
#include <string_view>

#include "megalith/runtime/exec.h"
#include "megalith/tensor/master_values.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops {

/// values [N] = the masters, in their dtype. On GPUs `values` may lie in page-locked host memory.
void read_masters(Exec& ex, const MasterValues& masters, const Tensor& values);
/// masters = values [N], and their copy is rounded to nearest even. `values` as above.
void write_masters(Exec& ex, const Tensor& values, const MasterValues& masters);

/// The masters as one tensor: `whole` itself, or values that are read into `memory`, which grows if it is too small, on
/// the host's side. Waits for the device in that case.
Tensor readable(Exec& ex, const MasterValues& masters, Buffer& memory);

/// Throws ShapeError unless these are masters of N parameters: f32, on the CPU also f64, with the tensors of their
/// form. `op` is for the message.
void expect_masters(const Exec& ex, const MasterValues& masters, Index numel, std::string_view op);

}  // namespace megalith::ops
