#include "megalith/ops/cuda/pair_parts.cuh"
#include "megalith/ops/cuda/prefix_sums.cuh"
#include "megalith/ops/echo_routing_kernels.h"
#include "megalith/ops/rows.h"

// What follows from a plan of clones, with the bits of the CPU. Launches, whatever the choices and the plan are:
// count_pairs 2, rewrite_choices 4, list_clones, add_rows and add_echo_totals 1 each.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxSlotsOfAll = static_cast<int>(kMaxEchoRanks * kMaxEchoSlots);

// ---- Counts ----

constexpr int kCountedPairs = 2048;  // of a block

__global__ void __launch_bounds__(kThreads) clear_counts_kernel(std::int32_t* counts, int numbers) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < numbers) counts[i] = 0;
}

/// A block counts kCountedPairs pairs of a rank. Adds whole numbers, so that their order does not matter.
__global__ void __launch_bounds__(kThreads)
    count_pairs_kernel(const std::int32_t* experts, std::int32_t* counts, int num_experts, int of_rank, int blocks) {
  extern __shared__ int counted[];
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x) / blocks;
  for (int e = thread; e < num_experts; e += kThreads) counted[e] = 0;
  __syncthreads();
  const std::int32_t* const own = experts + Index{rank} * of_rank;
  const int begin = static_cast<int>(blockIdx.x) % blocks * kCountedPairs, end = min(of_rank, begin + kCountedPairs);
#pragma unroll
  for (int step = 0; step < kCountedPairs / kThreads; ++step) {
    const int pair = begin + step * kThreads + thread, e = pair < end ? own[pair] : -1;
    if (e >= 0 && e < num_experts) atomicAdd(counted + e, 1);
  }
  __syncthreads();
  for (int e = thread; e < num_experts; e += kThreads) {
    if (counted[e] > 0) atomicAdd(counts + Index{rank} * num_experts + e, counted[e]);
  }
}

// ---- Columns ----

struct Rewrite {
  CountedPairs choices;
  const std::int32_t *src, *take;
  std::int32_t* columns;
  int *first, *next;  // the slots of an expert as a list, ascending; -1: none
  int all_slots, slots, local;

  __device__ int home_column(int expert) const { return expert / local * (local + slots) + expert % local; }
  __device__ int slot_column(int slot) const { return slot / slots * (local + slots) + local + slot % slots; }
};

/// A thread an expert or slot: its first slot, or the next one of the same expert.
__global__ void __launch_bounds__(kThreads) list_slots_kernel(const Rewrite x) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x),
            experts = x.choices.num_experts;
  if (i >= experts + x.all_slots) return;
  const bool is_expert = i < experts;
  const int slot = i - experts, expert = is_expert ? i : x.src[slot];
  int found = is_expert ? 0 : slot + 1;
  while (found < x.all_slots && x.src[found] != expert) ++found;
  (is_expert ? x.first + i : x.next + slot)[0] = found < x.all_slots ? found : -1;
}

/// A warp numbers the pairs of its part. Those below the sum of what an expert's slots take go to these.
__global__ void __launch_bounds__(kWarp) rewrite_kernel(const Rewrite x) {
  extern __shared__ int numbers[];
  const PairsOfPart part(x.choices);
  const std::int32_t* const take = x.take + Index{part.rank} * x.all_slots;
  std::int32_t* const columns = x.columns + Index{part.rank} * x.choices.of_rank;
  part.number_pairs(
      x.choices, numbers, [](int) { return 0; },
      [&](int pair, int expert, int number) {
        int column = -1;
        if (expert >= 0) {
          column = x.home_column(expert);
          for (int slot = x.first[expert]; slot >= 0; slot = x.next[slot]) {
            number -= take[slot];
            if (number >= 0) continue;
            column = x.slot_column(slot);
            break;
          }
        }
        columns[pair] = column;
      });
}

// ---- Rows that move ----

struct Clones {
  const std::int32_t* src;
  std::int32_t *counts, *sources, *begin, *wants, *sum_begin, *places;
  std::int32_t *image, *slots_of_clones, *sent, *received, *returned, *arrived;
  int ranks, rank, local, slots;

  __device__ int all_slots() const { return ranks * slots; }
};

/// The slots of this rank: at most kMaxEchoSlots, a thread each.
__device__ void list_own_slots(const Clones& x) {
  const int j = static_cast<int>(threadIdx.x);
  if (j > x.slots) return;
  const std::int32_t* const own = x.src + x.rank * x.slots;
  const bool is_active = j < x.slots && own[j] >= 0;
  const int home = is_active ? own[j] / x.local : 0;
  int before = 0, active = 0,
      from_lower = 0;  // active slots: below j, all, and those whose message is before that of j
  for (int other = 0; other < x.slots; ++other) {
    if (own[other] < 0) continue;
    ++active;
    if (other < j) ++before;
    if (own[other] / x.local < home || (own[other] / x.local == home && other < j)) ++from_lower;
  }
  if (j == x.slots) {  // the ends
    x.counts[0] = x.counts[1] = active;
    x.begin[active] = active;
    return;
  }
  x.received[j] = is_active ? from_lower : kUnusedRow;
  if (is_active) {
    x.sources[2 * before] = home;
    x.sources[2 * before + 1] = own[j] % x.local;
    x.begin[before] = before;
    x.wants[before] = j;
    x.returned[from_lower] = j;
  }
  if (j < active) return;
  x.sources[2 * j] = x.sources[2 * j + 1] = x.wants[j] = x.returned[j] = kUnusedRow;
  x.begin[j + 1] = kUnusedRow;
}

/// One block. Its work grows with the square of the slots of all ranks over 1024 threads.
__global__ void __launch_bounds__(kMaxThreads) list_clones_kernel(const Clones x) {
  __shared__ int row_of[kMaxSlotsOfAll];  // this rank's row that a slot has a clone of; -1: of no row here
  __shared__ int sums[kMaxWarps];
  const int thread = static_cast<int>(threadIdx.x), all_slots = x.all_slots();
  for (int slot = thread; slot < all_slots; slot += kMaxThreads) {
    const int expert = x.src[slot];
    row_of[slot] = expert >= 0 && expert / x.local == x.rank ? expert % x.local : -1;
  }
  __syncthreads();
  list_own_slots(x);
  int clones = 0;
  for (int first = 0; first < all_slots; first += kMaxThreads) {
    const int slot = first + thread, row = slot < all_slots ? row_of[slot] : -1;
    const int up_to = sum_up_to_thread(row >= 0 ? 1 : 0, sums);
    if (row >= 0) {
      const int arrived = clones + up_to - 1;
      int place = 0;  // clones of lower rows, and of this one in lower slots
      for (int other = 0; other < all_slots; ++other)
        place += row_of[other] >= 0 && (row_of[other] < row || (row_of[other] == row && other < slot)) ? 1 : 0;
      x.sent[arrived] = row;
      x.places[2 * place] = slot / x.slots;
      x.places[2 * place + 1] = slot % x.slots;
      x.slots_of_clones[place] = slot;
      x.arrived[place] = arrived;
    }
    if (slot < all_slots) x.image[slot] = row >= 0 ? row : kZeroRow;
    for (const int of_warp : sums) clones += of_warp;
  }
  for (int i = clones + thread; i < all_slots; i += kMaxThreads)
    x.sent[i] = x.places[2 * i] = x.places[2 * i + 1] = x.slots_of_clones[i] = x.arrived[i] = kUnusedRow;
  for (int row = thread; row <= x.local; row += kMaxThreads) {
    int before = 0;
    for (int slot = 0; slot < all_slots; ++slot) before += row_of[slot] >= 0 && row_of[slot] < row ? 1 : 0;
    x.sum_begin[row] = before;
  }
}

/// A thread adds N neighbours of a row. Reads each row that is added once, and what it is added to; of a row to
/// which nothing is added only `begin`.
template <int N>
__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(const float* rows, const std::int32_t* begin, const std::int32_t* order, float* grads, Index width,
                    Index blocks) {
  const Index row = blockIdx.x / blocks, column = (blockIdx.x % blocks * kThreads + threadIdx.x) * N;
  const int first = begin[row], end = begin[row + 1];
  if (first == end || column >= width) return;
  Values<float, N> sum = unpack(load_pack<N>(grads, row * width + column));
  for (int i = first; i < end; ++i) {
    const Values<float, N> more = unpack(load_pack<N>(rows, order[i] * width + column));
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += more[k];
  }
  store_pack<float, N>(grads, row * width + column, pack<float>(sum));
}

// ---- Totals ----

struct EchoSums {
  long long load, moved, clones, before, after, wanted;
};
/// The greatest of the last three.
struct AddSums {
  __device__ EchoSums operator()(const EchoSums& a, const EchoSums& b) const {
    return {a.load + b.load,         a.moved + b.moved,     a.clones + b.clones,
            max(a.before, b.before), max(a.after, b.after), max(a.wanted, b.wanted)};
  }
};

/// What add_echo_totals() reads and adds to.
struct EchoNumbers {
  const std::int32_t *load, *wanted, *load_after, *dropped, *src, *cap;
  double* totals;
  int ranks, all_slots;
};

/// One block. Sums of whole numbers, so that their order does not matter.
__global__ void __launch_bounds__(kThreads) add_echo_totals_kernel(const EchoNumbers x) {
  __shared__ EchoSums shared[kMaxWarps];
  EchoSums own{0, 0, 0, 0, 0, 0};
  for (int rank = static_cast<int>(threadIdx.x); rank < x.ranks; rank += kThreads)
    own = AddSums{}(own, {x.load[rank], 0, 0, x.load[rank], x.load_after[rank], x.wanted[rank]});
  for (int slot = static_cast<int>(threadIdx.x); slot < x.all_slots; slot += kThreads)
    own = AddSums{}(own, {0, x.cap[slot], x.src[slot] >= 0 ? 1 : 0, 0, 0, 0});
  const EchoSums all = block_reduce(own, shared, AddSums{});
  if (threadIdx.x != 0) return;
  const auto add = [&](EchoTotal which, double value) { x.totals[static_cast<int>(which)] += value; };
  add(EchoTotal::plans, 1);
  add(EchoTotal::mean_load, static_cast<double>(all.load) / x.ranks);
  add(EchoTotal::load_before, static_cast<double>(all.before));
  add(EchoTotal::load_after, static_cast<double>(all.after));
  add(EchoTotal::moved, static_cast<double>(all.moved));
  add(EchoTotal::clones, static_cast<double>(all.clones));
  add(EchoTotal::dropped, *x.dropped);
  x.totals[static_cast<int>(EchoTotal::wanted) +
           min(static_cast<int>(all.wanted), static_cast<int>(kMaxEchoSlots) + 1)] += 1;
}

}  // namespace

void count_pairs(Stream stream, const CountPairs& args) {
  const Index ranks = args.experts.dim(0), of_rank = args.experts.dim(1) * args.experts.dim(2);
  const Index experts = args.counts.dim(1), blocks = ceil_div(of_rank, Index{kCountedPairs});
  launch({stream, ceil_div(args.counts.numel(), Index{kThreads}), kThreads}, clear_counts_kernel,
         pointer<std::int32_t>(args.counts), static_cast<int>(args.counts.numel()));
  launch({stream, ranks * blocks, kThreads, experts * Index{sizeof(int)}}, count_pairs_kernel,
         pointer<const std::int32_t>(args.experts), pointer<std::int32_t>(args.counts), static_cast<int>(experts),
         static_cast<int>(of_rank), static_cast<int>(blocks));
}

void rewrite_choices(Stream stream, const RewriteChoices& args, const Tensor& scratch) {
  const RewriteScratch layout(args.experts, args.num_experts, args.src.numel());
  auto* const numbers = pointer<int>(scratch);
  const Index ranks = layout.parts.ranks;
  const Rewrite rewrite{
      .choices = {layout.parts, pointer<const std::int32_t>(args.experts), numbers, numbers + layout.totals_at()},
      .src = pointer<const std::int32_t>(args.src),
      .take = pointer<const std::int32_t>(args.take),
      .columns = pointer<std::int32_t>(args.columns),
      .first = numbers + layout.first_at(),
      .next = numbers + layout.next_at(),
      .all_slots = static_cast<int>(layout.slots),
      .slots = static_cast<int>(layout.slots / ranks),
      .local = static_cast<int>(args.num_experts / ranks)};
  launch({stream, ceil_div(args.num_experts + layout.slots, Index{kThreads}), kThreads}, list_slots_kernel, rewrite);
  count_parts(stream, rewrite.choices);
  launch({stream, ranks * layout.parts.parts, kWarp, args.num_experts * Index{sizeof(int)}}, rewrite_kernel, rewrite);
}

void list_clones(Stream stream, const ListClones& args) {
  const auto numbers = [](const Tensor& tensor) { return pointer<std::int32_t>(tensor); };
  const CloneLists& to = args.lists;
  launch({stream, 1, kMaxThreads}, list_clones_kernel,
         Clones{.src = numbers(args.src),
                .counts = numbers(to.counts),
                .sources = numbers(to.sources),
                .begin = numbers(to.begin),
                .wants = numbers(to.wants),
                .sum_begin = numbers(to.sum_begin),
                .places = numbers(to.places),
                .image = numbers(to.image),
                .slots_of_clones = numbers(to.slots),
                .sent = numbers(to.sent),
                .received = numbers(to.received),
                .returned = numbers(to.returned),
                .arrived = numbers(to.arrived),
                .ranks = static_cast<int>(args.ranks),
                .rank = static_cast<int>(args.rank),
                .local = static_cast<int>(args.num_experts / args.ranks),
                .slots = static_cast<int>(args.src.numel() / args.ranks)});
}

void add_rows(Stream stream, const AddRows& args) {
  const auto* rows = pointer<const float>(args.rows);
  auto* const grads = pointer<float>(args.grads);
  const auto *begin = pointer<const std::int32_t>(args.begin), *order = pointer<const std::int32_t>(args.order);
  const Index experts = args.grads.dim(0), width = args.grads.dim(1);
  const auto add = [&]<int N>(std::integral_constant<int, N>) {
    const Index blocks = ceil_div(width, Index{kThreads * N});
    launch({stream, experts * blocks, kThreads}, add_rows_kernel<N>, rows, begin, order, grads, width, blocks);
  };
  if (width % kPack<float> == 0 && are_aligned({rows, grads})) return add(std::integral_constant<int, kPack<float>>{});
  add(std::integral_constant<int, 1>{});
}

void add_echo_totals(Stream stream, const AddEchoTotals& args) {
  const auto numbers = [](const Tensor& tensor) { return pointer<const std::int32_t>(tensor); };
  launch({stream, 1, kThreads}, add_echo_totals_kernel,
         EchoNumbers{.load = numbers(args.stages.load),
                     .wanted = numbers(args.stages.wanted),
                     .load_after = numbers(args.plan.load_after),
                     .dropped = numbers(args.plan.plan_dropped),
                     .src = numbers(args.plan.src),
                     .cap = numbers(args.plan.cap),
                     .totals = pointer<double>(args.totals),
                     .ranks = static_cast<int>(args.plan.load_after.dim(0)),
                     .all_slots = static_cast<int>(args.plan.src.dim(0))});
}

}  // namespace megalith::ops::cuda
