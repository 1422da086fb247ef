#pragma once
#include <string>
#include <utility>
#include <vector>

namespace megalith::device {

// Facts about GPUs that are only printed. Nothing computes with them.

/// The other GPUs on a link of this one's that carries atomics, as NVLink does and PCIe does not.
std::vector<int> linked_gpus(int gpu);
/// Whether memory of this GPU can be shared between processes.
bool exports_memory(int gpu);
/// Names and versions of the GPUs' software. They are the driver, as "580.95.05" where the system reports it, and
/// CUDA's of the driver and of this program, as "13.0". Empty in a build without CUDA.
std::vector<std::pair<std::string, std::string>> driver_versions();
/// The GPU architectures that this program was built for, as gpu_code.h names them. Empty in a build without CUDA.
std::string code_architectures();

}  // namespace megalith::device
