#include "megalith/tensor/gpu_facts.h"

#include <fstream>

#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/device.h"
#include "megalith/tensor/gpu_pretence.h"

namespace megalith::device {

std::vector<int> linked_gpus(int gpu) {
  std::vector<int> linked;
  if (pretended().links_are_pcie) return linked;
  for (int other = 0; other < num_gpus(); ++other) {
    int has_atomics = 0;
    if (other != gpu)
      cuda::check(cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, gpu, other));
    if (has_atomics != 0) linked.push_back(other);
  }
  return linked;
}

bool exports_memory(int gpu) {
  int can = 0;
  CUdevice device = 0;
  const auto device_of = MEGALITH_DRIVER(cuDeviceGet);
  const auto attribute_of = MEGALITH_DRIVER(cuDeviceGetAttribute);
  return device_of != nullptr && attribute_of != nullptr && device_of(&device, gpu) == CUDA_SUCCESS &&
         attribute_of(&can, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) == CUDA_SUCCESS &&
         can != 0;
}

std::vector<std::pair<std::string, std::string>> driver_versions() {
  const auto text = [](int version) { return str(version / 1000, '.', version % 1000 / 10); };  // 13000 is 13.0
  int of_driver = 0, of_program = 0;
  static_cast<void>(cudaDriverGetVersion(&of_driver));  // 0 without a driver
  cuda::check(cudaRuntimeGetVersion(&of_program));
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ..."
  std::ifstream module("/proc/driver/nvidia/version");
  std::string word;
  const auto is_version = [&] { return word.find_first_not_of("0123456789.") == std::string::npos; };
  while (module >> word && !is_version()) continue;
  return {{"NVIDIA driver", module ? word : "unknown"},
          {"CUDA of the driver", of_driver == 0 ? "none" : text(of_driver)},
          {"CUDA of this program", text(of_program)}};
}

std::string code_architectures() { return MEGALITH_CUDA_ARCHITECTURES; }

}  // namespace megalith::device
