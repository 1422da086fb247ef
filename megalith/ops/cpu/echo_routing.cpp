#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/echo_routing_kernels.h"
#include "megalith/ops/rows.h"

namespace megalith::ops::cpu {
namespace {

/// Writes entries one after the other.
class Entries {
 public:
  explicit Entries(const Tensor& list) : first_(list.data<std::int32_t>()), size_(list.numel()) {}
  Index count() const { return count_; }
  void add(Index value) { first_[count_++] = static_cast<std::int32_t>(value); }
  void fill_up() { std::fill(first_ + count_, first_ + size_, kUnusedRow); }

 private:
  std::int32_t* first_;
  Index size_, count_ = 0;
};

/// The slots of a plan: S of each rank.
struct PlannedSlots {
  explicit PlannedSlots(const ListClones& args)
      : src(args.src.data<std::int32_t>()),
        slots(args.src.numel() / args.ranks),
        local(args.num_experts / args.ranks),
        ranks(args.ranks) {}
  bool is_active(Index slot) const { return src[slot] >= 0; }
  Index home(Index slot) const { return src[slot] / local; }
  Index row(Index slot) const { return src[slot] % local; }
  bool is_of(Index slot, Index rank) const { return is_active(slot) && home(slot) == rank; }

  const std::int32_t* src;
  Index slots, local, ranks;
};

/// The lists by which slots are filled.
void list_weights(const ListClones& args, const PlannedSlots& plan) {
  const CloneLists& to = args.lists;
  Entries sources(to.sources), begin(to.begin), wants(to.wants), image(to.image), sent(to.sent);
  for (Index j = 0; j < plan.slots; ++j) {
    const Index slot = args.rank * plan.slots + j;
    if (!plan.is_active(slot)) continue;
    begin.add(wants.count());
    sources.add(plan.home(slot));
    sources.add(plan.row(slot));
    wants.add(j);
  }
  const auto active = static_cast<std::int32_t>(wants.count());
  begin.add(active);
  std::fill_n(to.counts.data<std::int32_t>(), 2, active);
  for (Index slot = 0; slot < plan.ranks * plan.slots; ++slot) {
    const bool is_mine = plan.is_of(slot, args.rank);
    image.add(is_mine ? plan.row(slot) : kZeroRow);
    if (is_mine) sent.add(plan.row(slot));
  }
  for (Entries* each : {&sources, &begin, &wants, &sent}) each->fill_up();
}

/// Rows and gradients of this rank's slots in the order of messages: by home, then by slot.
void list_messages(const ListClones& args, const PlannedSlots& plan) {
  auto* const received = args.lists.received.data<std::int32_t>();
  std::fill_n(received, plan.slots, kUnusedRow);
  Entries returned(args.lists.returned);
  for (Index home = 0; home < plan.ranks; ++home) {
    for (Index j = 0; j < plan.slots; ++j) {
      if (!plan.is_of(args.rank * plan.slots + j, home)) continue;
      received[j] = static_cast<std::int32_t>(returned.count());
      returned.add(j);
    }
  }
  returned.fill_up();
}

/// Where the gradients of each expert's clones are, by slot.
void list_grads(const ListClones& args, const PlannedSlots& plan) {
  const CloneLists& to = args.lists;
  Entries begin(to.sum_begin), places(to.places), slots(to.slots), arrived(to.arrived);
  for (Index row = 0; row < plan.local; ++row) {
    begin.add(slots.count());
    Index before = 0;  // clones of this rank's experts in lower slots
    for (Index slot = 0; slot < plan.ranks * plan.slots; ++slot) {
      if (!plan.is_of(slot, args.rank)) continue;
      if (plan.row(slot) == row) {
        places.add(slot / plan.slots);
        places.add(slot % plan.slots);
        slots.add(slot);
        arrived.add(before);
      }
      ++before;
    }
  }
  begin.add(slots.count());
  for (Entries* each : {&places, &slots, &arrived}) each->fill_up();
}

}  // namespace

void count_pairs(const CountPairs& args) {
  const Index of_rank = args.experts.dim(1) * args.experts.dim(2), experts = args.counts.dim(1);
  const auto* expert_of = args.experts.data<std::int32_t>();
  auto* counts = args.counts.data<std::int32_t>();
  std::fill_n(counts, args.counts.numel(), 0);
  for (Index pair = 0; pair < args.experts.numel(); ++pair) {
    const std::int32_t expert = expert_of[pair];
    if (expert < -1 || expert >= experts)
      throw InputError(str("[count_pairs] experts[", pair / of_rank, "], pair ", pair % of_rank, " = ", expert,
                           ": must be in -1 .. ", experts - 1));
    if (expert >= 0) ++counts[pair / of_rank * experts + expert];
  }
}

/// By one thread, as build_rows().
void rewrite_choices(const RewriteChoices& args, const Tensor& scratch) {
  const Index ranks = args.experts.dim(0), experts = args.num_experts, all_slots = args.src.numel();
  const Index local = experts / ranks, slots = all_slots / ranks, columns = local + slots;
  const auto* src = args.src.data<std::int32_t>();
  auto* const first = scratch.data<std::int32_t>();  // [E]: the lowest slot of an expert; -1: none
  std::int32_t *const current = first + experts, *const left = current + experts;  // [E]: of one source rank
  std::int32_t* const next = left + experts;  // [R S]: the next slot of the same expert
  std::fill_n(first, experts, -1);
  for (Index slot = all_slots; slot-- > 0;) {
    if (src[slot] >= 0) next[slot] = std::exchange(first[src[slot]], static_cast<std::int32_t>(slot));
  }
  const Index of_rank = args.experts.dim(1) * args.experts.dim(2);
  for (Index rank = 0; rank < ranks; ++rank) {
    const auto* take = args.take.data<std::int32_t>() + rank * all_slots;
    const auto* expert_of = args.experts.data<std::int32_t>() + rank * of_rank;
    auto* column_of = args.columns.data<std::int32_t>() + rank * of_rank;
    for (Index e = 0; e < experts; ++e) {
      current[e] = first[e];
      left[e] = first[e] < 0 ? 0 : take[first[e]];
    }
    for (Index pair = 0; pair < of_rank; ++pair) {
      const Index e = expert_of[pair];
      column_of[pair] = -1;
      if (e < 0) continue;
      while (current[e] >= 0 && left[e] == 0) {
        current[e] = next[current[e]];
        left[e] = current[e] < 0 ? 0 : take[current[e]];
      }
      const Index slot = current[e];
      const Index column = slot < 0 ? e / local * columns + e % local : slot / slots * columns + local + slot % slots;
      if (slot >= 0) --left[e];
      column_of[pair] = static_cast<std::int32_t>(column);
    }
  }
}

void list_clones(const ListClones& args) {
  const PlannedSlots plan(args);
  list_weights(args, plan);
  list_messages(args, plan);
  list_grads(args, plan);
}

void add_echo_totals(const AddEchoTotals& args) {
  const auto largest = [](const Tensor& of_ranks) {
    return static_cast<double>(std::ranges::max(of_ranks.span<std::int32_t>()));
  };
  const auto sum = [](const Tensor& numbers) {
    double all = 0;
    for (const std::int32_t number : numbers.span<std::int32_t>()) all += number;
    return all;
  };
  auto* const totals = args.totals.data<double>();
  const auto add = [&](EchoTotal which, double value) { totals[static_cast<std::size_t>(which)] += value; };
  add(EchoTotal::plans, 1);
  add(EchoTotal::mean_load, sum(args.stages.load) / static_cast<double>(args.stages.load.numel()));
  add(EchoTotal::load_before, largest(args.stages.load));
  add(EchoTotal::load_after, largest(args.plan.load_after));
  add(EchoTotal::moved, sum(args.plan.cap));
  add(EchoTotal::clones, static_cast<double>(std::ranges::count_if(args.plan.src.span<std::int32_t>(),
                                                                   [](std::int32_t expert) { return expert >= 0; })));
  add(EchoTotal::dropped, sum(args.plan.plan_dropped));
  const auto wanted = static_cast<Index>(largest(args.stages.wanted));
  totals[static_cast<Index>(EchoTotal::wanted) + std::min(wanted, kMaxEchoSlots + 1)] += 1;
}

void add_rows(const AddRows& args) {
  const auto *begin = args.begin.data<std::int32_t>(), *order = args.order.data<std::int32_t>();
  const Index width = args.grads.dim(1);
  dispatch_wide(args.grads.dtype(), "add_rows", [&]<class T>() {
    const T* rows = args.rows.data<T>();
    T* grads = args.grads.data<T>();
    parallel_rows(args.grads.dim(0), width, [&](Index first, Index count) {
      for (Index expert = first; expert < first + count; ++expert) {
        for (Index i = begin[expert]; i < begin[expert + 1]; ++i) {
          const T* row = rows + order[i] * width;
          for (Index column = 0; column < width; ++column) grads[expert * width + column] += row[column];
        }
      }
    });
  });
}

}  // namespace megalith::ops::cpu
