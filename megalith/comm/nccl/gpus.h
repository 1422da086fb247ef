#pragma once
#include "megalith/comm/world.h"

namespace megalith::comm {

/// Gives each GPU more hardware queues than ranks have streams (32, where CUDA has 8): in a shared queue a stream waits
/// for what another one waits for, and a send behind a receive of the other direction never starts. Sets
/// CUDA_DEVICE_MAX_CONNECTIONS unless it is set. For main(), before threads start and before the first use of a GPU.
void widen_gpu_queues();

/// Which of its host's GPUs this rank is to use, for device::use(): ranks of one host are numbered in rank order.
/// Throws ConfigError on every rank when a host has more ranks than GPUs. Communicates over host.all().
int gpu_of_rank(World& host);

}  // namespace megalith::comm
