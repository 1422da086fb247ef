#pragma once
#include "megalith/tensor/device.h"

namespace megalith::comm {

/// Later work of a GPU's stream starts so many seconds after the earlier: by a kernel of one thread, which a graph may
/// hold. Both functions
/// throw BackendError in a program without NCCL.
void hold_stream(Stream stream, double seconds);
/// cuda::load_kernels() for it.
void load_hold_kernel();

}  // namespace megalith::comm
