#pragma once
#include <source_location>

#include <cuda_runtime.h>

#include "megalith/tensor/device.h"

namespace megalith::cuda {

/// Throws BackendError with the call site for any status except success.
void check(cudaError_t status, std::source_location where = std::source_location::current());

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace megalith::cuda
