#pragma once
#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/pair_parts.h"

// A stable counting sort of the pairs of all ranks by (rank, expert). count_parts() counts each part's pairs and adds
// up the parts before; then a kernel goes through the parts once more and numbers pairs (PairsOfPart). No result
// follows from the order of threads.

namespace megalith::ops::cuda {

struct CountedPairs {
  const std::int32_t* experts;
  int* counts;  // [R, E, parts]: pairs of a (rank, expert) in the parts before
  int* totals;  // [R, E]: in all parts
  int ranks, num_experts, of_rank, of_part, parts;

  CountedPairs(const PairParts& sizes, const std::int32_t* choices, int* counts_of_parts, int* counts_in_all)
      : experts(choices),
        counts(counts_of_parts),
        totals(counts_in_all),
        ranks(static_cast<int>(sizes.ranks)),
        num_experts(static_cast<int>(sizes.num_experts)),
        of_rank(static_cast<int>(sizes.of_rank)),
        of_part(static_cast<int>(sizes.of_part)),
        parts(static_cast<int>(sizes.parts)) {}
  __device__ int column(int rank, int expert) const { return rank * num_experts + expert; }
};

/// Two launches. Reads the choices once. Choices outside [0, E) count as none.
void count_parts(Stream stream, const CountedPairs& pairs);

/// What a warp takes: pairs [begin, end) of a rank. A grid has a block of one warp for each part of each rank.
struct PairsOfPart {
  int rank, part, begin, end;
  __device__ explicit PairsOfPart(const CountedPairs& x)
      : rank(static_cast<int>(blockIdx.x) / x.parts),
        part(static_cast<int>(blockIdx.x) % x.parts),
        begin(part * x.of_part),
        end(min(x.of_rank, begin + x.of_part)) {}

  /// Calls use(pair, expert) for all lanes together, 32 pairs at a time in ascending order. The expert is -1 where
  /// there is none; pairs from `end` on are among them.
  template <class Use>
  __device__ void for_pairs(const CountedPairs& x, const Use& use) const {
    constexpr int kAhead = 8;  // numbers in flight per thread
    const std::int32_t* const experts = x.experts + Index{rank} * x.of_rank;
    const int lane = static_cast<int>(threadIdx.x);
    for (int first = begin; first < end; first += kWarp * kAhead) {
      int ahead[kAhead];
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        const int pair = first + step * kWarp + lane;
        ahead[step] = pair < end ? experts[pair] : -1;
      }
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        const int e = ahead[step];
        if (first + step * kWarp < end) use(first + step * kWarp + lane, e >= 0 && e < x.num_experts ? e : -1);
      }
    }
  }

  /// Calls use(pair, expert, number) for each pair; expert and number are -1 where there is none. The pairs of an
  /// expert on this rank have ascending numbers from first(expert) on. next [E]: of the block's shared memory.
  template <class First, class Use>
  __device__ void number_pairs(const CountedPairs& x, int* next, const First& first, const Use& use) const {
    for (int e = static_cast<int>(threadIdx.x); e < x.num_experts; e += kWarp)
      next[e] = first(e) + x.counts[Index{x.column(rank, e)} * x.parts + part];
    __syncwarp();
    const unsigned lanes_before = (1u << threadIdx.x) - 1;
    for_pairs(x, [&](int pair, int expert) {
      const unsigned alike = __match_any_sync(0xffffffffu, expert);
      const int before = __popc(alike & lanes_before);
      const int number = expert >= 0 ? next[expert] + before : -1;
      __syncwarp();
      if (expert >= 0 && before == 0) next[expert] += __popc(alike);
      __syncwarp();
      if (pair < end) use(pair, expert, number);
    });
  }
};

}  // namespace megalith::ops::cuda
