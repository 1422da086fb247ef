#include "tests/ops/echo_dense_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace megalith::ops {
namespace {

using Longs64 = std::vector<std::int64_t>;

/// The numbers 0 .. n - 1, descending by value, the lower first.
std::vector<Index> descending(const Longs64& values) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](Index a, Index b) { return std::pair(-values[at(a)], a) < std::pair(-values[at(b)], b); });
  return order;
}

/// [chunks, buckets]: where intervals overlap.
std::vector<Longs64> dense_overlap(const Longs64& chunks, const Longs64& buckets) {
  std::vector<Longs64> matrix(chunks.size(), Longs64(buckets.size()));
  std::int64_t chunk_end = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    chunk_end += chunks[i];
    std::int64_t bucket_end = 0;
    for (std::size_t j = 0; j < buckets.size(); ++j) {
      bucket_end += buckets[j];
      matrix[i][j] = std::max<std::int64_t>(
          0, std::min(chunk_end, bucket_end) - std::max(chunk_end - chunks[i], bucket_end - buckets[j]));
    }
  }
  return matrix;
}

/// take of every slot of `src` and `cap`.
Ints dense_shares(const EchoCase& of, const Longs64& total, const DensePlan& plan) {
  Ints take(at(of.ranks * of.all_slots()), 0);
  for (Index e = 0; e < of.experts; ++e) {
    Longs64 left(at(of.ranks)), room;
    std::vector<Index> slots;
    for (Index r = 0; r < of.ranks; ++r) left[at(r)] = of.counts[at(r * of.experts + e)];
    for (Index k = 0; k < of.all_slots(); ++k) {
      if (plan.src[at(k)] != e) continue;
      slots.push_back(k);
      room.push_back(plan.cap[at(k)]);
      for (Index r = 0; r < of.ranks; ++r) {
        const auto share =
            static_cast<std::int32_t>(std::int64_t{of.counts[at(r * of.experts + e)]} * plan.cap[at(k)] / total[at(e)]);
        take[at(r * of.all_slots() + k)] = share;
        left[at(r)] -= share;
        room.back() -= share;
      }
    }
    const std::vector<Longs64> rest = dense_overlap(left, room);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      for (Index r = 0; r < of.ranks; ++r)
        take[at(r * of.all_slots() + slots[i])] += static_cast<std::int32_t>(rest[at(r)][i]);
    }
  }
  return take;
}

struct Totals {
  Longs64 total, load;
};
Totals totals_of(const EchoCase& of) {
  Totals totals{Longs64(at(of.experts)), Longs64(at(of.ranks))};
  for (Index i = 0; i < of.ranks * of.experts; ++i) {
    totals.total[at(i % of.experts)] += of.counts[at(i)];
    totals.load[at(i % of.experts / of.local())] += of.counts[at(i)];
  }
  return totals;
}

/// [experts, ranks]: the neediest rank takes from the most loaded one, `slots` experts at most, and is done.
std::vector<Longs64> dense_exact_moves(const EchoCase& of, Totals totals) {
  std::vector<Longs64> moves(at(of.experts), Longs64(at(of.ranks)));
  const std::int64_t sum = std::accumulate(totals.load.begin(), totals.load.end(), std::int64_t{0});
  Longs64 excess(at(of.ranks));
  const std::vector<Index> by_load = descending(totals.load);
  for (Index i = 0; i < of.ranks; ++i)
    excess[at(by_load[at(i)])] = totals.load[at(by_load[at(i)])] - sum / of.ranks - (i < sum % of.ranks ? 1 : 0);
  while (*std::ranges::min_element(excess) < 0) {
    Longs64 lack = excess;
    for (std::int64_t& value : lack) value = -value;
    const Index needy = descending(lack).front(), most = descending(excess).front();
    Index taken = 0;
    for (; excess[at(needy)] < 0 && taken < of.slots; ++taken) {
      const Longs64 own(totals.total.begin() + most * of.local(), totals.total.begin() + (most + 1) * of.local());
      const Index expert = most * of.local() + descending(own).front();
      const std::int64_t pairs = std::min(-excess[at(needy)], totals.total[at(expert)]);
      moves[at(expert)][at(needy)] = pairs;
      totals.total[at(expert)] -= pairs;
      excess[at(most)] -= pairs;
      excess[at(needy)] += pairs;
    }
    excess[at(needy)] = 0;
  }
  return moves;
}

/// The slots of moves [experts in `order`, ranks in `ranks`].
void dense_slots(const EchoCase& of, const std::vector<Longs64>& moves, const std::vector<Index>& experts,
                 const std::vector<Index>& ranks, DensePlan& plan) {
  plan = {Ints(at(of.all_slots()), -1), Ints(at(of.all_slots()), 0), {}};
  for (std::size_t j = 0; j < ranks.size(); ++j) {
    Longs64 column;
    for (const Longs64& row : moves) column.push_back(row[j]);
    const std::vector<Index> best = descending(column);
    for (Index t = 0; t < std::min(of.slots, of.experts); ++t) {
      const std::int64_t pairs = column[at(best[at(t)])];
      if (pairs < std::max<Index>(1, of.min_pairs)) continue;
      plan.src[at(ranks[j] * of.slots + t)] = static_cast<std::int32_t>(experts[at(best[at(t)])]);
      plan.cap[at(ranks[j] * of.slots + t)] = static_cast<std::int32_t>(pairs);
    }
  }
}

DensePlan dense_exact_plan(const EchoCase& of) {
  const Totals totals = totals_of(of);
  const std::vector<Longs64> by_number = dense_exact_moves(of, totals);
  Longs64 spill;
  for (const Longs64& row : by_number) spill.push_back(std::accumulate(row.begin(), row.end(), std::int64_t{0}));
  const std::vector<Index> experts = descending(spill);
  std::vector<Longs64> moves;
  for (const Index expert : experts) moves.push_back(by_number[at(expert)]);
  std::vector<Index> ranks(at(of.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  DensePlan plan;
  dense_slots(of, moves, experts, ranks, plan);
  plan.take = dense_shares(of, totals.total, plan);
  return plan;
}

}  // namespace

DensePlan dense_plan(const EchoCase& of) {
  if (of.balance == EchoBalance::exact) return dense_exact_plan(of);
  const Index local = of.local();
  const auto& [total, load] = totals_of(of);
  Longs64 spill(at(of.experts)), spare(at(of.ranks));
  const std::int64_t avg = std::accumulate(load.begin(), load.end(), std::int64_t{0}) / of.ranks;
  for (Index q = 0; q < of.ranks; ++q) {
    spare[at(q)] = std::max<std::int64_t>(0, avg - load[at(q)]);
    std::vector<std::pair<std::int64_t, Index>> own;
    for (Index e = q * local; e < (q + 1) * local; ++e) own.emplace_back(total[at(e)], e);
    std::sort(own.begin(), own.end());
    std::int64_t sum = 0, before = 0;
    for (const auto& [pairs, e] : own) {
      sum += pairs;
      spill[at(e)] = std::max<std::int64_t>(0, sum - avg) - before;
      before += spill[at(e)];
    }
  }
  const std::vector<Index> experts = descending(spill), ranks = descending(spare);
  Longs64 chunks, buckets;
  for (const Index e : experts) chunks.push_back(spill[at(e)]);
  for (const Index q : ranks) buckets.push_back(spare[at(q)]);
  DensePlan plan;
  dense_slots(of, dense_overlap(chunks, buckets), experts, ranks, plan);
  plan.take = dense_shares(of, total, plan);
  return plan;
}

}  // namespace megalith::ops
