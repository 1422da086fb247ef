#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops {

// weights: (E, N, K) : (N K, K, 1).  rows, others: forward (M, K) : (K, 1), (M, N) : (N, 1); else the reverse.
// z, dz: (M, F, 2) : (2 F, 2, 1) or (M, F) : (F, 1).  h, ph: (M, F) : (F, 1).  p, dp: (M) : (1).
// groups.begin, groups.rows: (E) : (1) i32.

namespace cpu {
/// Defined in matmul.cpp, whose pieces it is made of.
void grouped_matmul(const GroupedProduct& products);
/// h = act(z).
void activate_groups(const GroupedActivated& args, const HostGroups& groups);
/// What follows dh, which lies in args.ph.
void activate_groups_backward(const GroupedActivatedInputGrad& args, const HostGroups& groups);
}  // namespace cpu

namespace cuda {
/// One GEMM per group, in several streams at once (side_streams.h). Defined in gemm.cpp.
void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products);
void activate_groups(Stream stream, const GroupedActivated& args);
void activate_groups_backward(Stream stream, const GroupedActivatedInputGrad& args);
/// Whether the calling thread's GPU runs the kernel for groups on the device, or there is none.
bool may_have_grouped_kernel();
/// The kernel for groups on the device. They return false and do nothing where it cannot run.
bool grouped_kernel(Exec& ex, Stream stream, const GroupedProduct& product);
bool grouped_kernel(Exec& ex, Stream stream, const GroupedActivated& args);
/// parts: scratch f32 [M, tiled_dp_parts(F)]
bool grouped_kernel(Exec& ex, Stream stream, const GroupedActivatedInputGrad& args, const Tensor& parts);
/// Starts or ends AllGroupSizes.
void run_all_group_sizes(Exec& ex, bool on);
}  // namespace cuda

}  // namespace megalith::ops
