#include "megalith/ops/library.h"

#include "megalith/ops/cuda/gemm.h"

namespace megalith::ops {

Index library_workspace_bytes(Device device) { return device == Device::cuda ? cuda::kGemmWorkspaceBytes : 0; }

}  // namespace megalith::ops
