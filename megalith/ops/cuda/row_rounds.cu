#include <algorithm>

#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/cuda/prefix_sums.cuh"
#include "megalith/ops/row_rounds_kernels.h"

// One launch each. Only steps that are run again need them, so they are simple rather than fast.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// The rounds of experts, by value: the host has them.
struct RoundsOfExperts {
  std::int16_t of[kMaxGroups];
};
static_assert(sizeof(RoundsOfExperts) <= 2048, "part of a launch's 4 KB of arguments");

__global__ void __launch_bounds__(kThreads)
    choices_of_round_kernel(const std::int32_t* from, std::int32_t* to, Index pairs, int experts, int round,
                            const __grid_constant__ RoundsOfExperts rounds) {
  const Index pair = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (pair >= pairs) return;
  const int expert = from[pair];
  to[pair] = expert >= 0 && expert < experts && rounds.of[expert] == round ? expert : -1;
}

__global__ void __launch_bounds__(kThreads)
    number_pairs_kernel(const std::int32_t* experts, std::int32_t* row_of, Index count, Index slices) {
  const Index at = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (at < count) row_of[at] = experts[at / slices] < 0 ? kZeroRow : static_cast<std::int32_t>(at);
}

/// One block goes through the places in turns of a place a thread.
__global__ void __launch_bounds__(kMaxThreads)
    pull_places_kernel(const int2* places, int count, std::int32_t* counts, int2* sources, std::int32_t* begin,
                       std::int32_t* wants) {
  __shared__ int sums[kMaxWarps];
  int found = 0;
  for (int first = 0; first < count; first += kMaxThreads) {
    const int at = first + static_cast<int>(threadIdx.x);
    const int2 place = at < count ? places[at] : int2{-1, -1};
    const int pull = found + sum_up_to_thread(place.x >= 0 ? 1 : 0, sums) - 1;
    if (place.x >= 0) {
      sources[pull] = place;
      begin[pull] = pull;
      wants[pull] = at;
    }
    for (const int of_warp : sums) found += of_warp;
  }
  if (threadIdx.x != 0) return;
  begin[found] = found;
  counts[0] = counts[1] = found;
}

}  // namespace

void choices_of_round(Stream stream, const ChoicesOfRound& args) {
  RoundsOfExperts rounds{};
  std::copy(args.round_of.begin(), args.round_of.end(), rounds.of);
  const Index pairs = args.experts.numel();
  launch({stream, ceil_div(pairs, Index{kThreads}), kThreads}, choices_of_round_kernel,
         pointer<const std::int32_t>(args.experts), pointer<std::int32_t>(args.of_round), pairs,
         static_cast<int>(args.round_of.size()), static_cast<int>(args.round), rounds);
}

void number_pairs(Stream stream, const Tensor& experts, const Tensor& row_of) {
  const Index count = row_of.numel();
  if (count == 0) return;
  launch({stream, ceil_div(count, Index{kThreads}), kThreads}, number_pairs_kernel,
         pointer<const std::int32_t>(experts), pointer<std::int32_t>(row_of), count, count / experts.numel());
}

void pull_places(Stream stream, const Tensor& places, const PullTables& pulls) {
  launch({stream, 1, kMaxThreads}, pull_places_kernel, pointer<const int2>(places), static_cast<int>(places.dim(0)),
         pointer<std::int32_t>(pulls.counts), pointer<int2>(pulls.sources), pointer<std::int32_t>(pulls.begin),
         pointer<std::int32_t>(pulls.wants));
}

}  // namespace megalith::ops::cuda
