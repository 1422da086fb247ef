#pragma once
#include "megalith/tensor/device.h"

namespace megalith::ops {

/// Device memory that the libraries behind the ops take of their own for one Exec: the workspace of matrix products.
/// Part of the memory plan.
Index library_workspace_bytes(Device device);

}  // namespace megalith::ops
