#pragma once
#include "megalith/comm/peer/device_barrier.h"
#include "megalith/comm/row_lists.h"
#include "megalith/tensor/device.h"

namespace megalith::comm {

/// The maximal number of CTAs of a row kernel: a quarter of an H100's SMs.
inline constexpr int kMaxRowCtas = 33;

/// cuda::load_kernels() for the kernels of row collectives.
void load_row_kernels();

/// One member's kernel of a row collective, as gather_rows and gather_sum_rows of group.h. The symmetric memory of
/// `barrier` is that member's `mine`. Runs `ctas` CTAs, each on an SM of its own. Lists are read when the kernel runs.
/// Where a list is wrong, the kernel leaves out places and rows that do not exist, and what lies beyond the lists.
void gather_rows_symmetric(Stream stream, const DeviceBarrier& barrier, const GatherRows& args, int ctas);
void gather_sum_rows_symmetric(Stream stream, const DeviceBarrier& barrier, const GatherSumRows& args, int ctas);

}  // namespace megalith::comm
