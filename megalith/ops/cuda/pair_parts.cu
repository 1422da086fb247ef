#include "megalith/ops/cuda/pair_parts.cuh"
#include "megalith/ops/cuda/prefix_sums.cuh"

namespace megalith::ops::cuda {
namespace {

constexpr int kScanWarps = 8;

/// A warp counts the experts of its part.
__global__ void __launch_bounds__(kWarp) count_parts_kernel(const CountedPairs x) {
  extern __shared__ int counted[];
  for (int e = static_cast<int>(threadIdx.x); e < x.num_experts; e += kWarp) counted[e] = 0;
  __syncwarp();
  const PairsOfPart part(x);
  part.for_pairs(x, [&](int, int expert) {
    if (expert >= 0) atomicAdd(counted + expert, 1);
  });
  __syncwarp();
  for (int e = static_cast<int>(threadIdx.x); e < x.num_experts; e += kWarp)
    x.counts[Index{x.column(part.rank, e)} * x.parts + part.part] = counted[e];
}

/// A warp turns the counts of one (rank, expert) into sums over the parts before.
__global__ void __launch_bounds__(kScanWarps* kWarp) scan_parts_kernel(const CountedPairs x) {
  const int column = static_cast<int>(blockIdx.x * kScanWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (column >= x.ranks * x.num_experts) return;
  int* const counts = x.counts + Index{column} * x.parts;
  int total = 0;
  for (int first = 0; first < x.parts; first += kWarp) {
    const int part = first + lane, count = part < x.parts ? counts[part] : 0, up_to = sum_up_to_lane(count);
    if (part < x.parts) counts[part] = total + up_to - count;
    total += __shfl_sync(0xffffffffu, up_to, kWarp - 1);
  }
  if (lane == 0) x.totals[column] = total;
}

}  // namespace

void count_parts(Stream stream, const CountedPairs& pairs) {
  const Index columns = Index{pairs.ranks} * pairs.num_experts;
  launch({stream, Index{pairs.ranks} * pairs.parts, kWarp, pairs.num_experts * Index{sizeof(int)}}, count_parts_kernel,
         pairs);
  launch({stream, ceil_div(columns, Index{kScanWarps}), kScanWarps * kWarp}, scan_parts_kernel, pairs);
}

}  // namespace megalith::ops::cuda
