#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "megalith/base/types.h"

namespace megalith::cuda {

/// Whether the GPU that the calling thread uses and its driver can share memory in this way.
bool can_share_memory();

/// Memory of the calling thread's GPU, zeroed, that kernels and copy engines of other GPUs of this process access under
/// the same address. `gpus`: all that access it, the own one too, each once. Takes whole pages of 2 MiB; null when
/// there is no more. Other allocations stay private. cudaDeviceEnablePeerAccess() would share all of a GPU's. Then each
/// load of a kernel and each allocation would wait for the work in flight on every GPU. Freeing it waits for nobody: no
/// GPU may still access it.
std::shared_ptr<std::byte> take_shared_memory(Index bytes, std::span<const int> gpus);

}  // namespace megalith::cuda
