#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "megalith/base/types.h"

namespace megalith::cuda {

/// Whether the GPU that the calling thread uses and its driver can share memory so.
bool can_share_memory();

/// Memory of the calling thread's GPU that the kernels and copy engines of other GPUs of this process reach under the
/// same address, zeroed. `gpus`: all that reach it, the own one too, each once. Takes whole pages of 2 MiB; null when
/// there is no more. Other allocations stay private: cudaDeviceEnablePeerAccess() would share all of a GPU's, and then
/// whoever loads a kernel or takes memory waits for what is in flight on every GPU. Letting go of it waits for nobody:
/// no GPU may still touch it.
std::shared_ptr<std::byte> take_shared_memory(Index bytes, std::span<const int> gpus);

}  // namespace megalith::cuda
