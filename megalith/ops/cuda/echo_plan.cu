#include <limits>

#include "megalith/ops/cuda/prefix_sums.cuh"
#include "megalith/ops/echo_plan_kernels.h"

// ECHO's planner in integers, with the bits of the CPU. Four launches, whatever the counts are, and one more for the
// hash.
//   1. echo_totals: sums over source ranks.
//   2. echo_slots: one block, a thread an expert or a rank. What is to move where, and the slots.
//   3. echo_shares: a block a slot, a thread a source rank.
//   4. echo_rows: a thread a source rank and column.
// Sorts are counts of what comes before. What the CPU does one after the other by walking two lists is an overlap of
// intervals here: both lists laid out on one line.

namespace megalith::ops::cuda {
namespace {

constexpr int kMaxRanks = static_cast<int>(kMaxEchoRanks), kMaxExperts = static_cast<int>(kMaxEchoExperts),
              kMaxSlots = static_cast<int>(kMaxEchoSlots);
constexpr int kEchoThreads = 1024;  // of the block that makes the slots
static_assert(kEchoThreads >= kMaxExperts && kEchoThreads >= kMaxRanks);
constexpr unsigned kEchoLanes = 0xffffffffu;
constexpr int kTotalRanks = 8;  // source ranks that a block adds up at once
constexpr int kRowThreads = 256;

/// A plan, its stages (null where they are left out) and its scratch.
struct Echo {
  const std::int32_t* counts;
  std::int32_t *avg, *dropped, *src, *cap, *take, *rows, *load_after;
  std::uint64_t* hash;
  std::int32_t *expert_total, *load, *spill, *spare, *spill_index, *spare_index, *wanted, *moves, *breadth, *room;
  std::int32_t *total, *first, *next;  // [E], [E], [R S]: the slots of an expert as a list, ascending
  int ranks, experts, slots, min_pairs;
  bool is_exact;

  __device__ int local() const { return experts / ranks; }
  __device__ int all_slots() const { return ranks * slots; }
  __device__ int count(int source, int expert) const { return max(0, counts[source * experts + expert]); }
};

/// Block (32, kTotalRanks): an expert a column of threads.
__global__ void __launch_bounds__(kWarp* kTotalRanks) echo_totals_kernel(const Echo echo) {
  __shared__ int sums[kTotalRanks * kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = static_cast<int>(threadIdx.x) / kWarp;
  const int expert = static_cast<int>(blockIdx.x) * kWarp + lane;
  int sum = 0;
  if (expert < echo.experts) {
    for (int source = part; source < echo.ranks; source += kTotalRanks) sum += echo.count(source, expert);
  }
  sums[part * kWarp + lane] = sum;
  __syncthreads();
  if (part != 0 || expert >= echo.experts) return;
  for (int other = 1; other < kTotalRanks; ++other) sum += sums[other * kWarp + lane];
  echo.total[expert] = sum;
  if (echo.expert_total != nullptr) echo.expert_total[expert] = sum;
}

// ---- The slots ----

/// What the block that makes the slots shares.
struct SlotMaker {
  int total[kMaxExperts], spill[kMaxExperts];
  int position[kMaxExperts], order[kMaxExperts];  // of an expert in descending spill, and the reverse
  int up_to[kMaxExperts];  // spill of the experts up to a position; exact: pairs left of an expert
  int load[kMaxRanks], spare[kMaxRanks], deviation[kMaxRanks];
  int spare_order[kMaxRanks];
  int src[kMaxRanks * kMaxSlots], cap[kMaxRanks * kMaxSlots];
  int sums[kMaxWarps];
  int dropped;
};
static_assert(sizeof(SlotMaker) <= 48 * 1024);

/// How many of `values` come before number i, descending by value, the lower number first.
__device__ int place_in_order(const int* values, int count, int i) {
  const int value = values[i];
  int before = 0;
  for (int j = 0; j < count; ++j) before += values[j] > value || (values[j] == value && j < i) ? 1 : 0;
  return before;
}

/// The pairs above `avg` leave the largest experts of a rank: of those in ascending order, what lies above it.
__device__ int spill_of(const Echo& echo, const SlotMaker& make, int expert, int avg) {
  const int local = echo.local(), begin = expert / local * local, own = make.total[expert];
  int up_to = 0;
  for (int other = begin; other < begin + local; ++other) {
    const int pairs = make.total[other];
    if (pairs < own || (pairs == own && other <= expert)) up_to += pairs;
  }
  return max(0, up_to - avg) - max(0, up_to - own - avg);
}

/// The index of the greatest value among lanes' candidates; the lowest of equals. By one warp.
__device__ int index_of_greatest(long long value, int index) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const long long others = shuffle_xor(value, mask);
    const int at = shuffle_xor(index, mask);
    if (others > value || (others == value && at < index)) {
      value = others;
      index = at;
    }
  }
  return index;
}
/// The same for value(i), i < count.
template <class Value>
__device__ int find_greatest(int count, const Value& value) {
  long long best = -(1ll << 40);
  int index = 1 << 30;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < count; i += kWarp) {
    if (value(i) > best) {
      best = value(i);
      index = i;
    }
  }
  return index_of_greatest(best, index);
}

/// How many of the largest of `own` have `pairs` together. Changes nothing.
__device__ int experts_for(int pairs, int* own, int local) {
  const bool is_first = threadIdx.x % kWarp == 0;
  int count = 0;
  for (; pairs > 0 && count < local; ++count) {
    const int largest = find_greatest(local, [&](int i) { return own[i]; });
    pairs -= own[largest];
    __syncwarp();
    if (is_first) own[largest] = ~own[largest];  // negative: counted
    __syncwarp();
  }
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < local; i += kWarp) own[i] = own[i] < 0 ? ~own[i] : own[i];
  __syncwarp();
  return count;
}

/// EchoBalance::exact, by one warp: needy ranks one after the other. Their moves become slots in the order in which
/// they are found.
__device__ void move_exactly(const Echo& echo, SlotMaker& make) {
  const int ranks = echo.ranks, local = echo.local();
  const bool is_first = threadIdx.x == 0;
  int num_moves = 0;
  for (int turn = 0; turn < ranks; ++turn) {
    const int needy = find_greatest(ranks, [&](int i) { return -make.deviation[i]; });
    const int most = find_greatest(ranks, [&](int i) { return make.deviation[i]; });
    int rest = -make.deviation[needy], taken = 0;
    if (rest == 0) return;
    __syncwarp();
    if (is_first) {
      make.spare[needy] = rest;
      make.deviation[needy] = 0;
    }
    int* const own = make.up_to + most * local;
    for (; rest > 0 && taken < echo.slots; ++taken) {
      __syncwarp();
      const int largest = find_greatest(local, [&](int i) { return own[i]; }), pairs = min(rest, own[largest]);
      __syncwarp();
      rest -= pairs;
      if (!is_first) continue;
      const int expert = most * local + largest, slot = needy * echo.slots + taken;
      own[largest] -= pairs;
      make.spill[expert] += pairs;
      make.deviation[most] -= pairs;
      make.src[slot] = expert;
      make.cap[slot] = pairs;
      if (echo.moves == nullptr) continue;
      std::int32_t* const move = echo.moves + 3 * num_moves++;
      move[0] = expert;
      move[1] = needy;
      move[2] = pairs;
    }
    __syncwarp();
    if (is_first) make.dropped += rest;
    if (echo.wanted == nullptr) continue;
    const int more = experts_for(rest, own, local);
    if (is_first) echo.wanted[needy] = taken + more;
  }
}

/// The largest entries of a rank: descending, of equals that of the lower position first.
struct LargestEntries {
  int experts[kMaxSlots], pairs[kMaxSlots];
  int count = 0;

  __device__ void add(const SlotMaker& make, int slots, int expert, int moved) {
    int at = min(count, slots);
    while (at > 0 && (moved > pairs[at - 1] ||
                      (moved == pairs[at - 1] && make.position[expert] < make.position[experts[at - 1]])))
      --at;
    if (at == slots) return;
    count = min(count + 1, slots);
    for (int i = count - 1; i > at; --i) {
      experts[i] = experts[i - 1];
      pairs[i] = pairs[i - 1];
    }
    experts[at] = expert;
    pairs[at] = moved;
  }
  __device__ void store(SlotMaker& make, int slots, int rank) const {
    for (int i = 0; i < slots; ++i) {
      make.src[rank * slots + i] = i < count ? experts[i] : -1;
      make.cap[rank * slots + i] = i < count ? pairs[i] : 0;
    }
  }
};

/// Calls use(expert, pairs) for what a rank receives, whose spare pairs are [begin, end) of the line of spilt ones.
template <class Use>
__device__ int for_moves(const Echo& echo, const SlotMaker& make, int begin, int end, const Use& use) {
  if (begin >= end) return 0;
  int low = 0;  // the first position whose experts up to it spill more than `begin`
  for (int size = echo.experts; size > 0;) {
    const int half = size / 2;
    if (make.up_to[low + half] > begin) {
      size = half;
    } else {
      low += half + 1;
      size -= half + 1;
    }
  }
  int moves = 0;
  for (int at = begin; at < end; ++moves, ++low) {
    const int upper = min(make.up_to[low], end);
    use(make.order[low], upper - at, moves);
    at = upper;
  }
  return moves;
}

/// EchoBalance::greedy: what experts spill and what ranks lack as intervals on one line, the largest first.
__device__ void move_greedily(const Echo& echo, SlotMaker& make) {
  const int i = static_cast<int>(threadIdx.x);
  const int up_to = sum_up_to_thread(i < echo.experts ? make.spill[make.order[i]] : 0, make.sums);
  if (i < echo.experts) make.up_to[i] = up_to;
  const int rank = i < echo.ranks ? make.spare_order[i] : 0, room = i < echo.ranks ? make.spare[rank] : 0;
  const int room_up_to = sum_up_to_thread(room, make.sums);  // its barriers also order up_to
  const int begin = room_up_to - room, end = min(room_up_to, make.up_to[echo.experts - 1]);
  int dropped = 0, fitting = 0, moves = 0;
  if (i < echo.ranks) {
    LargestEntries largest;
    moves = for_moves(echo, make, begin, end, [&](int expert, int pairs, int) {
      dropped += pairs;
      if (pairs < echo.min_pairs) return;
      ++fitting;
      if (echo.slots > 0) largest.add(make, echo.slots, expert, pairs);
    });
    for (int k = 0; k < largest.count; ++k) dropped -= largest.pairs[k];
    largest.store(make, echo.slots, rank);
    if (dropped != 0) atomicAdd(&make.dropped, dropped);
    if (echo.wanted != nullptr) echo.wanted[rank] = fitting;
  }
  if (echo.moves == nullptr) return;
  const int first = sum_up_to_thread(moves, make.sums) - moves;
  if (i >= echo.ranks) return;
  for_moves(echo, make, begin, end, [&](int expert, int pairs, int move) {
    std::int32_t* const to = echo.moves + 3 * (first + move);
    to[0] = expert;
    to[1] = rank;
    to[2] = pairs;
  });
}

/// Loads, spill and spare before anything moves; for `exact` what ranks deviate from their targets.
__device__ void begin_slots(const Echo& echo, SlotMaker& make) {
  const int i = static_cast<int>(threadIdx.x), local = echo.local();
  if (i == 0) make.dropped = 0;
  if (i < echo.experts) make.total[i] = echo.total[i];
  for (int k = i; k < echo.all_slots(); k += kEchoThreads) {
    make.src[k] = -1;
    make.cap[k] = 0;
  }
  if (echo.moves != nullptr) {
    for (int k = i; k < 3 * (echo.experts + echo.ranks); k += kEchoThreads) echo.moves[k] = -1;
  }
  __syncthreads();
  int load = 0;
  if (i < echo.ranks) {
    for (int e = 0; e < local; ++e) load += make.total[i * local + e];
    make.load[i] = load;
  }
  sum_up_to_thread(load, make.sums);
  __syncthreads();
  int sum = 0;
  for (const int of_warp : make.sums) sum += of_warp;
  const int avg = sum / echo.ranks;
  if (i == 0) *echo.avg = avg;
  if (echo.is_exact) {
    if (i < echo.experts) {
      make.up_to[i] = make.total[i];
      make.spill[i] = 0;
    }
    if (i < echo.ranks) {
      make.spare[i] = 0;
      make.deviation[i] = load - avg - (place_in_order(make.load, echo.ranks, i) < sum % echo.ranks ? 1 : 0);
      if (echo.wanted != nullptr) echo.wanted[i] = 0;
    }
  } else {
    if (i < echo.experts) make.spill[i] = spill_of(echo, make, i, avg);
    if (i < echo.ranks) make.spare[i] = max(0, avg - load);
  }
  __syncthreads();
}

__device__ void sort_spill(const Echo& echo, SlotMaker& make) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < echo.experts) {
    const int at = place_in_order(make.spill, echo.experts, i);
    make.position[i] = at;
    make.order[at] = i;
    if (echo.spill_index != nullptr) echo.spill_index[at] = i;
    if (echo.spill != nullptr) echo.spill[i] = make.spill[i];
  }
  if (i < echo.ranks) {
    const int at = place_in_order(make.spare, echo.ranks, i);
    make.spare_order[at] = i;
    if (echo.spare_index != nullptr) echo.spare_index[at] = i;
    if (echo.spare != nullptr) echo.spare[i] = make.spare[i];
    if (echo.load != nullptr) echo.load[i] = make.load[i];
  }
  __syncthreads();
}

/// The slots of the plan, the lists of an expert's slots, and the loads after.
__device__ void end_slots(const Echo& echo, SlotMaker& make) {
  const int i = static_cast<int>(threadIdx.x), local = echo.local();
  for (int k = i; k < echo.all_slots(); k += kEchoThreads) {
    const int expert = make.src[k], pairs = make.cap[k];
    echo.src[k] = expert;
    echo.cap[k] = pairs;
    if (expert < 0) continue;
    atomicAdd(&make.load[k / echo.slots], pairs);
    atomicAdd(&make.load[expert / local], -pairs);
  }
  if (i < echo.experts) {
    int first = -1;
    for (int k = echo.all_slots() - 1; k >= 0; --k) {
      if (make.src[k] != i) continue;
      echo.next[k] = first;
      first = k;
    }
    echo.first[i] = first;
  }
  __syncthreads();
  if (i < echo.ranks) echo.load_after[i] = make.load[i];
  if (i == 0) *echo.dropped = make.dropped;
}

__global__ void __launch_bounds__(kEchoThreads) echo_slots_kernel(const Echo echo) {
  __shared__ SlotMaker make;
  begin_slots(echo, make);
  if (echo.is_exact) {
    if (threadIdx.x < kWarp) move_exactly(echo, make);
    __syncthreads();
    sort_spill(echo, make);
    const int rank = static_cast<int>(threadIdx.x);
    LargestEntries largest;
    if (rank < echo.ranks) {
      for (int k = rank * echo.slots; k < (rank + 1) * echo.slots && make.src[k] >= 0; ++k)
        largest.add(make, echo.slots, make.src[k], make.cap[k]);
      largest.store(make, echo.slots, rank);
    }
  } else {
    sort_spill(echo, make);
    move_greedily(echo, make);
  }
  __syncthreads();
  end_slots(echo, make);
}

// ---- The source ranks of a slot's pairs ----

/// A slot takes pairs of source ranks in proportion, rounded down. What the slots of an expert have left then, one
/// after the other, meets what the source ranks have left, one after the other.
__global__ void __launch_bounds__(kMaxRanks) echo_shares_kernel(const Echo echo) {
  __shared__ int shared_of[kMaxRanks];  // by place in the list of the expert's slots
  __shared__ int sums[kMaxWarps];
  const int slot = static_cast<int>(blockIdx.x), source = static_cast<int>(threadIdx.x);
  const int expert = echo.src[slot], all_slots = echo.all_slots();
  const bool exists = source < echo.ranks;
  const auto put = [&](std::int32_t* to, int value) {
    if (to != nullptr && exists) to[source * all_slots + slot] = value;
  };
  if (expert < 0) {
    put(echo.take, 0);
    put(echo.breadth, 0);
    if (echo.room != nullptr && source == 0) echo.room[slot] = 0;
    return;
  }
  shared_of[source] = 0;
  __syncthreads();
  const long long pairs = exists ? echo.count(source, expert) : 0, total = echo.total[expert];
  int share = 0, available = static_cast<int>(pairs), place = 0, own = 0;
  for (int k = echo.first[expert]; k >= 0; k = echo.next[k], ++place) {
    const int part = static_cast<int>(pairs * echo.cap[k] / total);
    available -= part;
    if (k == slot) {
      share = part;
      own = place;
    }
    const int of_warp = __reduce_add_sync(kEchoLanes, part);
    if (source % kWarp == 0 && of_warp != 0) atomicAdd(&shared_of[place], of_warp);
  }
  const int up_to = sum_up_to_thread(available, sums);  // its barriers also order shared_of
  int before = 0, room = 0;
  place = 0;
  for (int k = echo.first[expert]; place <= own; k = echo.next[k], ++place) {
    before += room;
    room = echo.cap[k] - shared_of[place];
  }
  const int more = max(0, min(up_to, before + room) - max(up_to - available, before));
  put(echo.breadth, share);
  put(echo.take, share + more);
  if (echo.room != nullptr && source == 0) echo.room[slot] = room;
}

/// Columns: of each rank its experts, then its slots.
__global__ void __launch_bounds__(kRowThreads) echo_rows_kernel(const Echo echo) {
  const int local = echo.local(), of_rank = local + echo.slots, columns = echo.ranks * of_rank;
  const int i = static_cast<int>(blockIdx.x) * kRowThreads + static_cast<int>(threadIdx.x);
  if (i >= echo.ranks * columns) return;
  const int source = i / columns, rank = i % columns / of_rank, in_rank = i % of_rank;
  const std::int32_t* const take = echo.take + source * echo.all_slots();
  if (in_rank >= local) {
    echo.rows[i] = take[rank * echo.slots + in_rank - local];
    return;
  }
  const int expert = rank * local + in_rank;
  int pairs = echo.count(source, expert);
  for (int k = echo.first[expert]; k >= 0; k = echo.next[k]) pairs -= take[k];
  echo.rows[i] = pairs;
}

/// FNV-1a of little-endian i32, by one thread: each byte needs the one before. Some 60 ns a number: plans
/// of 64 ranks and 256 experts with 2 slots take 0.5 ms.
__global__ void echo_hash_kernel(const Echo echo, const StepState* state, Index every) {
  if (state != nullptr && !has_hash(*state, every)) return;
  std::uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](std::int32_t value) {
    auto word = static_cast<std::uint32_t>(value);
    for (int byte = 0; byte < 4; ++byte, word >>= 8) hash = (hash ^ (word & 0xff)) * 0x100000001b3ull;
  };
  for (const int value : {echo.ranks, echo.experts, echo.slots, static_cast<int>(*echo.avg)}) add(value);
  for (int k = 0; k < echo.all_slots(); ++k) add(echo.src[k]);
  for (int k = 0; k < echo.all_slots(); ++k) add(echo.cap[k]);
  for (int i = 0; i < echo.ranks * echo.all_slots(); ++i) add(echo.take[i]);
  *echo.hash = hash;
}

Echo echo_of(const PlanEcho& args, const Tensor& scratch) {
  const EchoPlan& plan = args.plan;
  const EchoStages& stages = args.stages;
  const auto numbers = [](const Tensor& tensor) { return pointer<std::int32_t>(tensor); };
  const auto optional = [&](const Tensor& tensor) { return tensor ? numbers(tensor) : nullptr; };
  const Index ranks = args.counts.dim(0), experts = args.counts.dim(1), all_slots = plan.src.numel();
  return {.counts = pointer<const std::int32_t>(args.counts),
          .avg = numbers(plan.avg),
          .dropped = numbers(plan.plan_dropped),
          .src = numbers(plan.src),
          .cap = numbers(plan.cap),
          .take = numbers(plan.take),
          .rows = numbers(plan.rows),
          .load_after = numbers(plan.load_after),
          .hash = plan.hash ? pointer<std::uint64_t>(plan.hash) : nullptr,
          .expert_total = optional(stages.expert_total),
          .load = optional(stages.load),
          .spill = optional(stages.spill),
          .spare = optional(stages.spare),
          .spill_index = optional(stages.spill_index),
          .spare_index = optional(stages.spare_index),
          .wanted = optional(stages.wanted),
          .moves = optional(stages.moves),
          .breadth = optional(stages.breadth),
          .room = optional(stages.room),
          .total = numbers(scratch),
          .first = numbers(scratch) + experts,
          .next = numbers(scratch) + 2 * experts,
          .ranks = static_cast<int>(ranks),
          .experts = static_cast<int>(experts),
          .slots = static_cast<int>(all_slots / ranks),
          .min_pairs = static_cast<int>(std::min<Index>(args.min_pairs, std::numeric_limits<int>::max())),
          .is_exact = args.balance == EchoBalance::exact};
}

}  // namespace

void plan_echo(Stream stream, const PlanEcho& args, const Tensor& scratch) {
  const Echo echo = echo_of(args, scratch);
  const Index ranks = echo.ranks, experts = echo.experts, all_slots = ranks * echo.slots;
  launch({stream, ceil_div(experts, kWarp), kWarp * kTotalRanks}, echo_totals_kernel, echo);
  launch({stream, 1, kEchoThreads}, echo_slots_kernel, echo);
  launch({stream, all_slots, kMaxRanks}, echo_shares_kernel, echo);
  launch({stream, ceil_div(ranks * (experts + all_slots), kRowThreads), kRowThreads}, echo_rows_kernel, echo);
  if (echo.hash != nullptr) {
    launch({stream, 1, 1}, echo_hash_kernel, echo,
           args.step_state ? pointer<const StepState>(args.step_state) : nullptr, args.hash_every);
  }
}

}  // namespace megalith::ops::cuda
