#include <algorithm>
#include <cstring>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/echo_stages.h"
#include "megalith/ops/echo_plan_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// The scratch of a call, of echo_scratch_words().
struct EchoScratch {
  EchoScratch(const EchoSizes& sizes, const Tensor& scratch) : next_word(scratch.data<std::int64_t>()) {
    for (std::int64_t** of_experts : {&total, &spill, &spill_keys, &position, &first})
      *of_experts = next(sizes.experts);
    for (std::int64_t** of_ranks : {&load, &spare, &spare_keys, &deviation}) *of_ranks = next(sizes.ranks);
    for (std::int64_t** of_slots : {&next_slot, &left}) *of_slots = next(sizes.all_slots);
    static_assert(sizeof(EchoMove) == 3 * sizeof(std::int64_t));
    moves = reinterpret_cast<EchoMove*>(next(3 * (sizes.experts + sizes.ranks)));
  }
  std::int64_t *total, *spill, *spill_keys, *position, *first;  // [E]
  std::int64_t *load, *spare, *spare_keys, *deviation;          // [R]
  std::int64_t *next_slot, *left;                               // [R S]
  EchoMove* moves;                                              // [E + R]

 private:
  std::int64_t* next(Index words) {
    std::int64_t* const at = next_word;
    next_word += words;
    return at;
  }
  std::int64_t* next_word;
};

std::int32_t* numbers_or_null(const Tensor& tensor) { return tensor ? tensor.data<std::int32_t>() : nullptr; }

void narrow(const std::int64_t* from, Index count, const Tensor& to) {
  if (to)
    std::transform(from, from + count, to.data<std::int32_t>(), [](auto v) { return static_cast<std::int32_t>(v); });
}

void write_order(const std::int64_t* keys, Index count, const Tensor& to) {
  if (to)
    std::transform(keys, keys + count, to.data<std::int32_t>(),
                   [](auto key) { return static_cast<std::int32_t>(index_of_key(key)); });
}

void write_moves(const EchoMove* moves, Index count, const Tensor& to) {
  if (!to) return;
  auto* out = to.data<std::int32_t>();
  std::fill_n(out, to.numel(), -1);
  for (const EchoMove* move = moves; move != moves + count; ++move) {
    for (const std::int64_t value : {move->expert, move->rank, move->pairs}) *out++ = static_cast<std::int32_t>(value);
  }
}

/// Returns the sum of all counts.
std::int64_t sum_counts(const EchoSizes& sizes, const std::int32_t* counts, const EchoScratch& s) {
  std::int64_t sum = 0;
  std::fill_n(s.total, sizes.experts, 0);
  for (Index rank = 0; rank < sizes.ranks; ++rank) {
    for (Index expert = 0; expert < sizes.experts; ++expert) {
      const std::int64_t pairs = counts[rank * sizes.experts + expert];
      if (pairs < 0)
        throw InputError(str("[plan_echo] counts[", rank, ", ", expert, "] = ", pairs, ": must be at least 0"));
      s.total[expert] += pairs;
      sum += pairs;
    }
  }
  if (sum > std::numeric_limits<std::int32_t>::max())
    throw InputError(str("[plan_echo] sum of counts = ", sum, ": must be below 2^31"));
  for (Index rank = 0; rank < sizes.ranks; ++rank) {
    s.load[rank] = 0;
    for (Index i = 0; i < sizes.local(); ++i) s.load[rank] += s.total[rank * sizes.local() + i];
  }
  return sum;
}

/// Which pairs are to move where. `wanted` is written for `exact` alone.
MovesFound balance_loads(const EchoSizes& sizes, const PlanEcho& args, std::int64_t avg, const EchoScratch& s) {
  if (args.balance == EchoBalance::exact) {
    const MovesFound found = exact_moves(sizes, {.total = s.total,
                                                 .load = s.load,
                                                 .spill = s.spill,
                                                 .spare = s.spare,
                                                 .wanted = numbers_or_null(args.stages.wanted),
                                                 .deviation = s.deviation,
                                                 .left = s.position,
                                                 .keys = s.spare_keys,
                                                 .moves = s.moves});
    sort_descending(s.spill, sizes.experts, s.spill_keys);
    sort_descending(s.spare, sizes.ranks, s.spare_keys);
    return found;
  }
  for (Index rank = 0; rank < sizes.ranks; ++rank) {
    const Index begin = rank * sizes.local();
    spill_of_rank(s.total + begin, sizes.local(), avg, s.spill + begin, s.spill_keys + begin);
    s.spare[rank] = std::max<std::int64_t>(0, avg - s.load[rank]);
  }
  sort_descending(s.spill, sizes.experts, s.spill_keys);
  sort_descending(s.spare, sizes.ranks, s.spare_keys);
  return {.count = overlap_moves(sizes, s.spill, s.spill_keys, s.spare, s.spare_keys, s.moves)};
}

/// rows and load_after.
void write_loads(const EchoSizes& sizes, const PlanEcho& args, const EchoScratch& s) {
  const Index local = sizes.local(), slots = sizes.slots(), columns = sizes.experts + sizes.all_slots;
  const auto* counts = args.counts.data<std::int32_t>();
  const auto *src = args.plan.src.data<std::int32_t>(), *cap = args.plan.cap.data<std::int32_t>();
  const auto* take = args.plan.take.data<std::int32_t>();
  auto *rows = args.plan.rows.data<std::int32_t>(), *after = args.plan.load_after.data<std::int32_t>();
  const auto column = [&](Index expert) { return expert / local * (local + slots) + expert % local; };
  for (Index source = 0; source < sizes.ranks; ++source) {
    std::int32_t* const row = rows + source * columns;
    for (Index expert = 0; expert < sizes.experts; ++expert)
      row[column(expert)] = counts[source * sizes.experts + expert];
    for (Index slot = 0; slot < sizes.all_slots; ++slot) {
      const std::int32_t moved = take[source * sizes.all_slots + slot];
      row[slot / slots * (local + slots) + local + slot % slots] = moved;
      if (src[slot] >= 0) row[column(src[slot])] -= moved;
    }
  }
  narrow(s.load, sizes.ranks, args.plan.load_after);
  for (Index slot = 0; slot < sizes.all_slots; ++slot) {
    if (src[slot] < 0) continue;
    after[slot / slots] += cap[slot];
    after[src[slot] / local] -= cap[slot];
  }
}

/// FNV-1a of little-endian i32.
std::uint64_t hashed(std::uint64_t hash, const std::int32_t* values, Index count) {
  for (Index i = 0; i < count; ++i) {
    auto word = static_cast<std::uint32_t>(values[i]);
    for (int byte = 0; byte < 4; ++byte, word >>= 8) hash = (hash ^ (word & 0xff)) * 0x100000001b3ULL;
  }
  return hash;
}

bool makes_hash(const PlanEcho& args) {
  if (!args.step_state) return true;
  StepState state;
  std::memcpy(&state, args.step_state.raw(), sizeof state);
  return has_hash(state, args.hash_every);
}

void write_hash(const EchoSizes& sizes, const EchoPlan& plan) {
  const std::int32_t head[] = {static_cast<std::int32_t>(sizes.ranks), static_cast<std::int32_t>(sizes.experts),
                               static_cast<std::int32_t>(sizes.slots()), *plan.avg.data<std::int32_t>()};
  std::uint64_t hash = hashed(0xcbf29ce484222325ULL, head, 4);
  for (const Tensor& part : {plan.src, plan.cap, plan.take})
    hash = hashed(hash, part.data<std::int32_t>(), part.numel());
  *plan.hash.data<std::int64_t>() = static_cast<std::int64_t>(hash);
}

}  // namespace

void plan_echo(const PlanEcho& args, const Tensor& scratch) {
  const EchoSizes sizes{args.counts.dim(0), args.counts.dim(1), args.plan.src.numel()};
  const EchoScratch s(sizes, scratch);
  const EchoPlan& plan = args.plan;
  const EchoStages& stages = args.stages;
  const auto* counts = args.counts.data<std::int32_t>();
  const std::int64_t avg = sum_counts(sizes, counts, s) / sizes.ranks;
  *plan.avg.data<std::int32_t>() = static_cast<std::int32_t>(avg);
  const MovesFound found = balance_loads(sizes, args, avg, s);
  narrow(s.total, sizes.experts, stages.expert_total);
  narrow(s.load, sizes.ranks, stages.load);
  narrow(s.spill, sizes.experts, stages.spill);
  narrow(s.spare, sizes.ranks, stages.spare);
  write_moves(s.moves, found.count, stages.moves);
  write_order(s.spill_keys, sizes.experts, stages.spill_index);
  write_order(s.spare_keys, sizes.ranks, stages.spare_index);
  for (Index i = 0; i < sizes.experts; ++i) s.position[index_of_key(s.spill_keys[i])] = i;
  const bool is_exact = args.balance == EchoBalance::exact;
  const std::int64_t no_slot = fill_slots(sizes, {.moves = s.moves,
                                                  .num_moves = found.count,
                                                  .position = s.position,
                                                  .min_pairs = args.min_pairs,
                                                  .src = plan.src.data<std::int32_t>(),
                                                  .cap = plan.cap.data<std::int32_t>(),
                                                  .wanted = is_exact ? nullptr : numbers_or_null(stages.wanted)});
  *plan.plan_dropped.data<std::int32_t>() = static_cast<std::int32_t>(found.dropped + no_slot);
  share_slots(sizes, {.counts = counts,
                      .total = s.total,
                      .src = plan.src.data<std::int32_t>(),
                      .cap = plan.cap.data<std::int32_t>(),
                      .take = plan.take.data<std::int32_t>(),
                      .breadth = numbers_or_null(stages.breadth),
                      .room = numbers_or_null(stages.room),
                      .first = s.first,
                      .next = s.next_slot,
                      .left = s.left});
  write_loads(sizes, args, s);
  if (plan.hash && makes_hash(args)) write_hash(sizes, plan);
}

}  // namespace megalith::ops::cpu
