#include <limits>

#include "megalith/ops/cuda/pair_parts.cuh"
#include "megalith/ops/cuda/prefix_sums.cuh"
#include "megalith/ops/group_rows.h"
#include "megalith/ops/row_budget_kernels.h"

// Numbers the pairs of each expert by (source rank, row, choice), and takes away those from the number on that has no
// room. Four launches. Where all have room the last one reads one number.

namespace megalith::ops::cuda {
namespace {

struct Limit {
  CountedPairs choices;  // choices.totals become first numbers
  std::int32_t* experts;
  int *left, *overflows;
  std::int64_t *overflow, *dropped;
  int local_experts, room, rank;

  __device__ int& total(int of_rank, int expert) const { return choices.totals[choices.column(of_rank, expert)]; }
};

/// Pairs of this rank that have no room, and the most rows that a rank needs.
struct Need {
  long long beyond, most;
};
struct AddNeeds {
  __device__ Need operator()(const Need& a, const Need& b) const { return {a.beyond + b.beyond, max(a.most, b.most)}; }
};

/// One block, a thread an expert.
__global__ void __launch_bounds__(kMaxThreads) limit_counts_kernel(const Limit x) {
  __shared__ int sums[kMaxWarps];
  __shared__ Need shared[kMaxWarps];
  __shared__ int begin_of[kMaxThreads];
  const int e = static_cast<int>(threadIdx.x), experts = x.choices.num_experts;
  const bool exists = e < experts;
  int pairs = 0;
  for (int rank = 0; exists && rank < x.choices.ranks; ++rank) pairs += x.total(rank, e);
  begin_of[e] = sum_up_to_thread(pairs, sums) - pairs;
  __syncthreads();
  Need need{0, 0};
  if (exists) {
    const int begin = begin_of[e] - begin_of[e / x.local_experts * x.local_experts];
    const int left = min(max(x.room - begin, 0), pairs);
    x.left[e] = left;
    need.most = begin + pairs;
    int first = 0;
    for (int rank = 0; rank < x.choices.ranks; ++rank) {
      const int of_rank = x.total(rank, e);
      x.total(rank, e) = first;
      if (rank == x.rank) need.beyond = first + of_rank - min(max(left, first), first + of_rank);
      first += of_rank;
    }
  }
  need = block_reduce(need, shared, AddNeeds{});
  if (e != 0) return;
  *x.overflows = need.most > x.room ? 1 : 0;
  if (x.dropped != nullptr) *x.dropped += need.beyond;
  if (x.overflow == nullptr) return;
  x.overflow[0] += need.beyond;
  x.overflow[1] = max(static_cast<long long>(x.overflow[1]), need.most);
}

__global__ void __launch_bounds__(kWarp) limit_rows_kernel(const Limit x) {
  extern __shared__ int numbers[];
  if (*x.overflows == 0) return;
  const PairsOfPart part(x.choices);
  std::int32_t* const experts = x.experts + Index{part.rank} * x.choices.of_rank;
  part.number_pairs(
      x.choices, numbers, [&](int expert) { return x.total(part.rank, expert); },
      [&](int pair, int expert, int number) {
        if (expert >= 0 && number >= x.left[expert]) experts[pair] = -1;
      });
}

}  // namespace

void limit_rows(Stream stream, const LimitRows& args, const Tensor& scratch) {
  static_assert(kMaxGroups <= kMaxThreads);
  const LimitScratch layout(args);
  auto* const numbers = pointer<int>(scratch);
  auto* const experts = pointer<std::int32_t>(args.experts);
  const Limit limit{.choices = {layout.parts, experts, numbers, numbers + layout.totals_at()},
                    .experts = experts,
                    .left = numbers + layout.left_at(),
                    .overflows = numbers + layout.overflows_at(),
                    .overflow = args.overflow ? pointer<std::int64_t>(args.overflow) : nullptr,
                    .dropped = args.dropped ? pointer<std::int64_t>(args.dropped) : nullptr,
                    .local_experts = static_cast<int>(args.local_experts),
                    .room = static_cast<int>(std::min<Index>(args.room, std::numeric_limits<int>::max())),
                    .rank = static_cast<int>(args.rank)};
  count_parts(stream, limit.choices);
  launch({stream, 1, kMaxThreads}, limit_counts_kernel, limit);
  launch({stream, layout.parts.ranks * layout.parts.parts, kWarp, args.num_experts * Index{sizeof(int)}},
         limit_rows_kernel, limit);
}

}  // namespace megalith::ops::cuda
