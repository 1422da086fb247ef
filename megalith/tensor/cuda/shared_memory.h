#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "megalith/base/types.h"
#include "megalith/tensor/memory_publisher.h"

namespace megalith::cuda {

/// Whether the GPU that the calling thread uses and its driver can share memory in this way.
bool can_share_memory();

/// Whether that GPU's memory can be shared with other processes, too: as file descriptors.
bool can_export_memory();

/// From here on the calling thread shares with other processes what it takes by take_shared_memory(); null: no longer.
void publish_memory_by(std::shared_ptr<MemoryPublisher> publisher);
/// Null unless the calling thread shares with other processes.
const std::shared_ptr<MemoryPublisher>& memory_publisher();

/// Reserves these addresses, multiples of 2 MiB, for memory of GPUs, until the result goes. Null if they are not free.
std::shared_ptr<void> reserve_addresses(std::byte* begin, Index bytes);
/// Maps memory that another process has published, for the calling thread's GPU, to addresses that are reserved. Takes
/// no ownership of the descriptor. Throws BackendError.
void map_published(std::byte* address, Index bytes, int descriptor);
void unmap_published(std::byte* address, Index bytes) noexcept;

/// Memory of the calling thread's GPU, zeroed, that kernels and copy engines of other GPUs of this process access under
/// the same address. `gpus`: all that access it, the own one too, each once. Takes whole pages of 2 MiB; null when
/// there is no more. Other allocations stay private. cudaDeviceEnablePeerAccess() would share all of a GPU's. Then each
/// load of a kernel and each allocation would wait for the work in flight on every GPU. Freeing it waits for no GPU:
/// none may still access it. With a memory_publisher() it is also accessible from the processes of that.
std::shared_ptr<std::byte> take_shared_memory(Index bytes, std::span<const int> gpus);

}  // namespace megalith::cuda
