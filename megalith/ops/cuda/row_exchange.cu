#include "megalith/ops/cuda/pair_parts.cuh"
#include "megalith/ops/cuda/prefix_sums.cuh"
#include "megalith/ops/row_exchange_kernels.h"

// A stable counting sort of the pairs of all ranks by (rank, expert), as build_rows() makes one, then a compaction of
// those whose experts are here. Six launches, whatever the choices are, eight for two lists of rows (first_groups). No
// result follows from the order of threads.
//   1, 2. count_parts().
//   3. lay_out: one block, a thread an expert: first rows, the groups here, the ranges of rows without a pair.
//   4. place_pairs: a warp goes through its part once more, 32 pairs at a time, and gives each its row.
//   5. sum_rows_here: a thread counts the pairs of a row that come here, a block adds them up.
//   6. write_pulls: the same threads write the lists at the sums over all rows before.
//   7, 8. The last two again for the rows that the first experts do not want.
// Reads the choices twice and writes 4 bytes of scratch for each pair. Not measured yet.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = static_cast<int>(ExchangeScratch::kRowsOfBlock);

/// Two sums in one number, which stay below 2^32: pairs that come here, and rows that have such a pair.
using PairsAndRows = unsigned long long;
__device__ PairsAndRows pairs_and_rows(int pairs) {
  return static_cast<PairsAndRows>(pairs) + (pairs > 0 ? PairsAndRows{1} << 32 : 0);
}
__device__ int pairs_of(PairsAndRows sums) { return static_cast<int>(sums & 0xffffffffu); }
__device__ int rows_of(PairsAndRows sums) { return static_cast<int>(sums >> 32); }

/// Rows [row, row + count) have no pair. They are the `before`-th and following such rows.
struct EmptyRange {
  int row, count, before;
};
static_assert(sizeof(EmptyRange) == 12);

struct Pulls {
  std::int32_t* counts;
  int2* sources;
  std::int32_t *begin, *wants;
};

/// Which rows a list has: all, those that one of the first experts wants, or the others.
enum class Listed : int { all, first, rest };

/// A plan and its scratch (ExchangeScratch).
struct Exchange {
  CountedPairs choices;  // choices.totals become first rows
  PairsAndRows *totals, *rest_totals;
  int* here;
  EmptyRange* empty;
  int* row_of;
  std::int32_t *group_begin, *group_rows;
  Pulls rows, rest, pairs;
  int2* places;
  std::int32_t *row_begin, *pair_begin;
  ExpertRanks at;
  int ranks, num_experts, rank, alignment, each, top_k, first_groups;
  int rows_of_rank, row_blocks;
  int results;  // rows of the buffer, M

  __device__ bool is_here(int expert) const {
    for (Index slice = 0; slice < at.slices; ++slice) {
      if (at.destination(expert, slice) / at.local_experts == rank) return true;
    }
    return false;
  }
  /// An expert's rows from a rank: their number, then the first row.
  __device__ int& first(int of_rank, int expert) const { return choices.totals[choices.column(of_rank, expert)]; }
};

/// An expert has rows from each rank, one rank after the other, then zeros up to the alignment. Each rank's first
/// expert begins at row 0.
__global__ void __launch_bounds__(kMaxThreads) lay_out_kernel(const Exchange x) {
  __shared__ int sums[kMaxWarps];
  __shared__ int begin_of[kMaxThreads];
  const int e = static_cast<int>(threadIdx.x), local = static_cast<int>(x.at.local_experts);
  const bool exists = e < x.num_experts, is_here = exists && x.is_here(e);
  for (int i = e; i < local * (x.ranks + 1); i += kMaxThreads) x.empty[i] = {};
  int rows = 0, without_pair = 0;
  for (int rank = 0; exists && rank < x.ranks; ++rank) {
    const int chosen = x.first(rank, e);
    rows += x.each > 0 ? x.each : chosen;
    if (x.each > 0) without_pair += x.each - min(x.each, chosen);
  }
  const int taken = exists ? (rows + x.alignment - 1) / x.alignment * x.alignment : 0;
  begin_of[e] = sum_up_to_thread(taken, sums) - taken;
  const int zeros = is_here ? without_pair + taken - rows : 0;
  int before = sum_up_to_thread(zeros, sums) - zeros;  // its barriers also order begin_of and x.empty
  if (!exists) return;
  const int begin = begin_of[e] - begin_of[e / local * local];
  EmptyRange* const empty = x.empty + e % local * (x.ranks + 1);
  int next = begin;
  for (int rank = 0; rank < x.ranks; ++rank) {
    const int chosen = x.first(rank, e);
    const int end = next + (x.each > 0 ? x.each : chosen), last = next + min(chosen, end - next);
    x.first(rank, e) = next;
    if (is_here) empty[rank] = {last, end - last, before};
    before += end - last;
    next = end;
  }
  x.here[e] = is_here ? 1 : 0;
  if (!is_here) return;
  empty[x.ranks] = {next, begin + taken - next, before};
  x.group_begin[e % local] = begin;
  x.group_rows[e % local] = rows;
}

/// Of this rank's pair: where its results are.
__device__ void write_places(const Exchange& x, int pair, int expert, int row) {
  for (Index slice = 0; slice < x.at.slices; ++slice) {
    const Index rank = row < 0 ? -1 : x.at.destination(expert, slice) / x.at.local_experts;
    x.places[pair * x.at.slices + slice] = {static_cast<int>(rank), row};
  }
}

__global__ void __launch_bounds__(kWarp) place_pairs_of_exchange_kernel(const Exchange x) {
  extern __shared__ int shared[];
  int *const next = shared, *const first = next + x.num_experts, *const here = first + x.num_experts;
  const PairsOfPart part(x.choices);
  for (int e = static_cast<int>(threadIdx.x); e < x.num_experts; e += kWarp) {
    first[e] = x.first(part.rank, e);
    here[e] = x.here[e];
  }
  int* const row_of = x.row_of + Index{part.rank} * x.choices.of_rank;
  part.number_pairs(
      x.choices, next, [&](int expert) { return first[expert]; },
      [&](int pair, int expert, int row) {
        if (expert >= 0 && x.each > 0 && row >= first[expert] + x.each) row = -1;
        row_of[pair] = row >= 0 && row < x.results && here[expert] != 0 ? row : -1;
        if (part.rank == x.rank) write_places(x, pair, expert, row);
      });
}

/// The sum over the threads of a block of kThreads; every thread gets it.
__device__ PairsAndRows sum_over_block(PairsAndRows value, PairsAndRows (&shared)[kMaxWarps]) {
  __syncthreads();  // the last use of `shared`
  return block_reduce(value, shared, [](PairsAndRows a, PairsAndRows b) { return a + b; });
}

/// A row of all ranks' rows, one after the other, and its pairs that come here; none if it is not listed.
struct RowHere {
  Index row;
  int pairs = 0;
  __device__ RowHere(const Exchange& x, Listed listed) : row(blockIdx.x * Index{kThreads} + threadIdx.x) {
    if (row >= Index{x.ranks} * x.rows_of_rank) return;
    const int end_of_first = listed == Listed::all ? 0 : x.group_begin[x.first_groups];
    bool is_first = false;
    for (int k = 0; k < x.top_k; ++k) {
      const int result = x.row_of[row * x.top_k + k];
      if (result < 0) continue;
      ++pairs;
      is_first = is_first || result < end_of_first;
    }
    if (listed != Listed::all && is_first != (listed == Listed::first)) pairs = 0;
  }
};

__device__ PairsAndRows* totals_of(const Exchange& x, Listed listed) {
  return listed == Listed::rest ? x.rest_totals : x.totals;
}

__global__ void __launch_bounds__(kThreads) sum_rows_here_kernel(const Exchange x, const Listed listed) {
  __shared__ PairsAndRows shared[kMaxWarps];
  const PairsAndRows sum = sum_over_block(pairs_and_rows(RowHere(x, listed).pairs), shared);
  if (threadIdx.x == 0) totals_of(x, listed)[blockIdx.x] = sum;
}

/// The sum of the totals of the first `blocks` blocks.
__device__ PairsAndRows sum_of_blocks(const PairsAndRows* totals, int blocks, PairsAndRows (&shared)[kMaxWarps]) {
  PairsAndRows sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) sum += totals[i];
  return sum_over_block(sum, shared);
}

/// The rows of a block: their pulls, after those of `before`; in the list of pairs after `pairs_before` more.
__device__ void write_pulls_of_rows(const Exchange& x, Listed listed, PairsAndRows before, int pairs_before,
                                    PairsAndRows (&shared)[kMaxWarps]) {
  const RowHere here(x, listed);
  const PairsAndRows mine = pairs_and_rows(here.pairs), in_warp = sum_up_to_lane(mine);
  __syncthreads();  // the last use of `shared`
  if (threadIdx.x % kWarp == kWarp - 1) shared[threadIdx.x / kWarp] = in_warp;
  __syncthreads();
  PairsAndRows at = before + in_warp - mine;
  for (unsigned warp = 0; warp < threadIdx.x / kWarp; ++warp) at += shared[warp];
  if (here.pairs == 0) return;
  const int rank = static_cast<int>(here.row / x.rows_of_rank), row = static_cast<int>(here.row % x.rows_of_rank);
  const Pulls& rows = listed == Listed::rest ? x.rest : x.rows;
  rows.sources[rows_of(at)] = {rank, row};
  rows.begin[rows_of(at)] = pairs_of(at);
  int pull = pairs_of(at);
  for (int k = 0; k < x.top_k; ++k) {
    const int result = x.row_of[here.row * x.top_k + k];
    if (result < 0) continue;
    const int pair = pairs_before + pull;
    x.pairs.sources[pair] = {rank, row * x.top_k + k};
    x.pairs.begin[pair] = pair;
    rows.wants[pull++] = x.pairs.wants[pair] = result;
  }
}

/// What follows the last pull of a list of `pulls` pulls with `pairs` wants, and `zeros` rows without a pair.
__device__ void write_end(const Exchange& x, const Pulls& list, int pulls, int pairs, int zeros) {
  list.begin[pulls] = pairs;
  list.counts[0] = pulls;
  list.counts[1] = min(x.results, pairs + zeros);
}

__device__ void write_ends(const Exchange& x, Listed listed, PairsAndRows all, int pairs_before) {
  const EmptyRange& last = x.empty[x.at.local_experts * (x.ranks + 1) - 1];
  const int zeros = last.before + last.count, pairs = pairs_before + pairs_of(all);
  if (listed == Listed::rest)
    write_end(x, x.rest, rows_of(all), pairs_of(all), 0);
  else
    write_end(x, x.rows, rows_of(all), pairs_of(all), zeros);
  if (listed != Listed::first) write_end(x, x.pairs, pairs, pairs, zeros);
}

/// A range of rows without a pair, after the pairs of a list.
__device__ void write_zeros(const Exchange& x, const Pulls& list, const EmptyRange& range, int pairs) {
  for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kThreads) {
    const int want = pairs + range.before + i;
    if (want < x.results) list.wants[want] = range.row + i;
  }
}

/// One of x.row_blocks blocks takes rows, one after them a range of rows without a pair. All write what is the same for
/// all choices.
__global__ void __launch_bounds__(kThreads) write_pulls_kernel(const Exchange x, const Listed listed) {
  __shared__ PairsAndRows shared[kMaxWarps];
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const PairsAndRows before = sum_of_blocks(totals_of(x, listed), min(block, x.row_blocks), shared);
  const int pairs_before = listed == Listed::rest ? pairs_of(sum_of_blocks(x.totals, x.row_blocks, shared)) : 0;
  if (block < x.row_blocks) {
    write_pulls_of_rows(x, listed, before, pairs_before, shared);
  } else {
    const EmptyRange range = x.empty[block - x.row_blocks];
    if (listed != Listed::rest) write_zeros(x, x.rows, range, pairs_of(before));
    if (listed != Listed::first) write_zeros(x, x.pairs, range, pairs_before + pairs_of(before));
    if (block == x.row_blocks && thread == 0) write_ends(x, listed, before, pairs_before);
  }
  if (listed == Listed::rest) return;
  const int slices = static_cast<int>(x.at.slices), stride = static_cast<int>(gridDim.x) * kThreads;
  for (int pair = block * kThreads + thread; pair <= x.choices.of_rank; pair += stride) {
    x.pair_begin[pair] = pair * slices;
    if (pair % x.top_k == 0) x.row_begin[pair / x.top_k] = pair * slices;
  }
}

Pulls pulls_of(const PullTables& tables) {
  return {.counts = pointer<std::int32_t>(tables.counts),
          .sources = pointer<int2>(tables.sources),
          .begin = pointer<std::int32_t>(tables.begin),
          .wants = pointer<std::int32_t>(tables.wants)};
}

Exchange exchange_of(const PlanExchange& args, const ExchangeScratch& layout, const Tensor& scratch) {
  auto* const numbers = pointer<int>(scratch);
  const auto number = [](Index value) { return static_cast<int>(value); };
  return {.choices = {layout.parts, pointer<const std::int32_t>(args.experts), numbers + layout.counts_at(),
                      numbers + layout.first_at()},
          .totals = reinterpret_cast<PairsAndRows*>(numbers),
          .rest_totals = reinterpret_cast<PairsAndRows*>(numbers) + layout.row_blocks,
          .here = numbers + layout.here_at(),
          .empty = reinterpret_cast<EmptyRange*>(numbers + layout.empty_at()),
          .row_of = numbers + layout.rows_at(),
          .group_begin = pointer<std::int32_t>(args.groups.begin),
          .group_rows = pointer<std::int32_t>(args.groups.rows),
          .rows = pulls_of(args.rows),
          .rest = args.first_groups > 0 ? pulls_of(args.rest) : Pulls{},
          .pairs = pulls_of(args.pairs),
          .places = pointer<int2>(args.places),
          .row_begin = pointer<std::int32_t>(args.row_begin),
          .pair_begin = pointer<std::int32_t>(args.pair_begin),
          .at = args.ranks,
          .ranks = number(layout.parts.ranks),
          .num_experts = number(layout.parts.num_experts),
          .rank = number(args.rank),
          .alignment = number(args.groups.alignment),
          .each = number(args.rows_of_each),
          .top_k = number(args.experts.dim(2)),
          .first_groups = number(args.first_groups),
          .rows_of_rank = number(args.experts.dim(1)),
          .row_blocks = number(layout.row_blocks),
          .results = number(args.rows.wants.dim(0))};
}

}  // namespace

void plan_exchange(Stream stream, const PlanExchange& args, const Tensor& scratch) {
  static_assert(kMaxGroups <= kMaxThreads);
  const ExchangeScratch layout(args);
  const Exchange exchange = exchange_of(args, layout, scratch);
  const Index warps = layout.parts.ranks * layout.parts.parts;
  const Index of_experts = layout.parts.num_experts * Index{sizeof(int)};
  count_parts(stream, exchange.choices);
  launch({stream, 1, kMaxThreads}, lay_out_kernel, exchange);
  launch({stream, warps, kWarp, 3 * of_experts}, place_pairs_of_exchange_kernel, exchange);
  const auto list = [&](Listed listed) {
    launch({stream, layout.row_blocks, kThreads}, sum_rows_here_kernel, exchange, listed);
    launch({stream, layout.row_blocks + layout.empty_ranges(), kThreads}, write_pulls_kernel, exchange, listed);
  };
  if (args.first_groups == 0) return list(Listed::all);
  list(Listed::first);
  list(Listed::rest);
}

}  // namespace megalith::ops::cuda
