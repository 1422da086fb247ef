#pragma once
#include <source_location>

#include <cuda.h>

namespace megalith::cuda {

/// A function of the CUDA driver by its name, in its version of CUDA 12.0, or null. The program is not linked with the
/// driver, because it must start without one.
void* find_driver_function(const char* name);

/// Throws BackendError with the driver's name of the error and the call site for any status except success.
void check_driver(CUresult status, std::source_location where = std::source_location::current());

/// Whether the GPU that the calling thread uses has the attribute: a CU_DEVICE_ATTRIBUTE of value 1.
bool has_attribute(CUdevice_attribute attribute);

/// A driver function, looked up at its first use: MEGALITH_DRIVER(cuMemCreate)(arguments).
#define MEGALITH_DRIVER(name)                                                                                      \
  ([] {                                                                                                            \
    static const auto function = reinterpret_cast<decltype(&name)>(::megalith::cuda::find_driver_function(#name)); \
    return function;                                                                                               \
  }())

}  // namespace megalith::cuda
