#include "megalith/tensor/cuda/driver.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::cuda {

void* find_driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return function;
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

void check_driver(CUresult status, std::source_location where) {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  static_cast<void>(MEGALITH_DRIVER(cuGetErrorName)(status, &name));
  const std::string_view file = where.file_name();
  throw BackendError(str("[", file.substr(file.rfind('/') + 1), ':', where.line(),
                         "] CUDA driver: ", name == nullptr ? "unknown error" : name));
}

bool has_attribute(CUdevice_attribute attribute) {
  int gpu = 0, value = 0;
  CUdevice device = 0;
  check(cudaGetDevice(&gpu));
  const auto device_of = MEGALITH_DRIVER(cuDeviceGet);
  const auto attribute_of = MEGALITH_DRIVER(cuDeviceGetAttribute);
  if (device_of == nullptr || attribute_of == nullptr) return false;
  check_driver(device_of(&device, gpu));
  check_driver(attribute_of(&value, attribute, device));
  return value == 1;
}

}  // namespace megalith::cuda
