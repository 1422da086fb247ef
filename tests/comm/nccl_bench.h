#pragma once
#include "megalith/comm/world.h"

namespace megalith::comm {

/// Prints how long all_reduce, reduce_scatter, all_gather and messages round the ring take between GPUs, of 64 KiB to
/// 256 MiB in bf16: one line each, the median of 20 by the GPU's clock, on rank 0.
void nccl_bench(World& world);

}  // namespace megalith::comm
