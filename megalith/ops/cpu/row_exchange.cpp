#include <algorithm>
#include <span>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/row_exchange_kernels.h"
#include "megalith/ops/rows.h"

namespace megalith::ops::cpu {
namespace {

/// Lists as they grow.
class Pulls {
 public:
  explicit Pulls(const PullTables& tables)
      : counts_(tables.counts.data<std::int32_t>()),
        sources_(tables.sources.data<std::int32_t>()),
        begin_(tables.begin.data<std::int32_t>()),
        wants_(tables.wants.data<std::int32_t>()) {}
  /// One more row of the result wants this source. Calls with the same source follow each other.
  void want(Index rank, Index row, Index result) {
    if (pulls_ == 0 || sources_[2 * pulls_ - 2] != rank || sources_[2 * pulls_ - 1] != row) {
      sources_[2 * pulls_] = static_cast<std::int32_t>(rank);
      sources_[2 * pulls_ + 1] = static_cast<std::int32_t>(row);
      begin_[pulls_++] = static_cast<std::int32_t>(end_);
    }
    wants_[end_++] = static_cast<std::int32_t>(result);
  }
  void end_pulls() { begin_[pulls_] = static_cast<std::int32_t>(end_); }
  void zero(Index begin, Index end) {
    for (Index row = begin; row < end; ++row) wants_[end_++] = static_cast<std::int32_t>(row);
  }
  void close() {
    counts_[0] = static_cast<std::int32_t>(pulls_);
    counts_[1] = static_cast<std::int32_t>(end_);
  }

 private:
  std::int32_t *counts_, *sources_, *begin_, *wants_;
  Index pulls_ = 0, end_ = 0;
};

/// The first rows of every expert's rows from every rank, and the groups here. next [R, E] begins as `first`.
class ExchangeLayout {
 public:
  ExchangeLayout(const PlanExchange& args, const Tensor& first)
      : args_(args),
        ranks_(args.experts.dim(0)),
        experts_(args.num_experts),
        local_(args.ranks.local_experts),
        first_(first.data<std::int64_t>()),
        next_(first_ + ranks_ * experts_) {
    count();
    place();
  }
  /// Whether this rank has a slice of the expert.
  bool is_here(Index expert) const {
    for (Index slice = 0; slice < args_.ranks.slices; ++slice) {
      if (args_.ranks.destination(expert, slice) / local_ == args_.rank) return true;
    }
    return false;
  }
  /// The row of the next pair of this rank and expert; -1 if there is no room.
  Index take(Index rank, Index expert) {
    std::int64_t& next = next_[rank * experts_ + expert];
    if (args_.rows_of_each > 0 && next - first_[rank * experts_ + expert] == args_.rows_of_each) return -1;
    return next++;
  }
  /// Calls f(begin, end) for the rows that have no pair, when all pairs have been taken.
  template <class F>
  void for_empty_rows(const F& f) const {
    for (Index expert = 0; expert < experts_; ++expert) {
      if (!is_here(expert)) continue;
      Index end = 0;
      for (Index rank = 0; rank < ranks_; ++rank) {
        const Index at = rank * experts_ + expert;
        end = args_.rows_of_each > 0 ? first_[at] + args_.rows_of_each : next_[at];
        f(next_[at], end);
      }
      f(end, round_up(end, args_.groups.alignment));
    }
  }

 private:
  /// next [R, E]: the rows of each expert from each rank.
  void count() {
    const Index rows = args_.experts.dim(1), top_k = args_.experts.dim(2);
    const auto* expert_of = args_.experts.data<std::int32_t>();
    std::fill_n(next_, ranks_ * experts_, args_.rows_of_each);
    for (Index pair = 0; pair < args_.experts.numel(); ++pair) {
      const std::int32_t expert = expert_of[pair];
      if (expert < -1 || expert >= experts_)
        throw InputError(str("[plan_exchange] experts[", pair / (rows * top_k), ", ", pair / top_k % rows, ", ",
                             pair % top_k, "] = ", expert, ": must be in -1 .. ", experts_ - 1));
      if (expert >= 0 && args_.rows_of_each == 0) ++next_[pair / (rows * top_k) * experts_ + expert];
    }
  }
  void place() {
    auto *begin = args_.groups.begin.data<std::int32_t>(), *group_rows = args_.groups.rows.data<std::int32_t>();
    Index end = 0;
    for (Index expert = 0; expert < experts_; ++expert) {
      if (expert % local_ == 0) end = 0;
      const Index group = end;
      for (Index rank = 0; rank < ranks_; ++rank) {
        std::int64_t& next = next_[rank * experts_ + expert];
        first_[rank * experts_ + expert] = end;
        end += std::exchange(next, end);
      }
      if (is_here(expert)) {
        begin[expert % local_] = static_cast<std::int32_t>(group);
        group_rows[expert % local_] = static_cast<std::int32_t>(end - group);
      }
      end = round_up(end, args_.groups.alignment);
    }
  }

  const PlanExchange& args_;
  Index ranks_, experts_, local_;
  std::int64_t *first_, *next_;
};

void fill_places(const PlanExchange& args, Index pair, Index expert, Index row) {
  auto* places = args.places.data<std::int32_t>() + 2 * pair * args.ranks.slices;
  for (Index slice = 0; slice < args.ranks.slices; ++slice) {
    const Index rank = row < 0 ? -1 : args.ranks.destination(expert, slice) / args.ranks.local_experts;
    places[2 * slice] = static_cast<std::int32_t>(rank);
    places[2 * slice + 1] = static_cast<std::int32_t>(row);
  }
}

/// Lists the rows of all ranks of which `takes` is true: takes(where a row is wanted).
template <class Takes>
void list_pulls(const PlanExchange& args, std::span<const std::int32_t> row_here, const Takes& takes, Pulls& rows,
                Pulls& pairs) {
  const Index of_rank = args.experts.dim(1), top_k = args.experts.dim(2);
  for (Index row = 0; row < args.experts.dim(0) * of_rank; ++row) {
    const auto wanted = row_here.subspan(static_cast<std::size_t>(row * top_k), static_cast<std::size_t>(top_k));
    if (!takes(wanted)) continue;
    for (Index k = 0; k < top_k; ++k) {
      const Index result = wanted[static_cast<std::size_t>(k)];
      if (result < 0) continue;
      rows.want(row / of_rank, row % of_rank, result);
      pairs.want(row / of_rank, row % of_rank * top_k + k, result);
    }
  }
}

}  // namespace

/// By one thread, as build_rows().
void plan_exchange(const PlanExchange& args, const Tensor& first, const Tensor& row_of) {
  const Index rows = args.experts.dim(1), top_k = args.experts.dim(2), own = rows * top_k;
  const auto* expert_of = args.experts.data<std::int32_t>();
  const std::span<std::int32_t> row_here = row_of.span<std::int32_t>();
  ExchangeLayout layout(args, first);
  for (Index at = 0; at < args.experts.numel(); ++at) {
    const Index rank = at / own, expert = expert_of[at];
    const Index row = expert < 0 ? -1 : layout.take(rank, expert);
    row_here[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(row >= 0 && layout.is_here(expert) ? row : -1);
    if (rank == args.rank) fill_places(args, at % own, expert, row);
  }
  Pulls pulls(args.rows), pairs(args.pairs);
  const auto close = [&](Pulls& list) {
    list.end_pulls();
    layout.for_empty_rows([&](Index begin, Index end) { list.zero(begin, end); });
    list.close();
  };
  if (args.first_groups == 0) {
    list_pulls(
        args, row_here, [](auto) { return true; }, pulls, pairs);
  } else {
    const std::int32_t end_of_first = args.groups.begin.data<std::int32_t>()[args.first_groups];
    const auto is_first = [&](std::span<const std::int32_t> wanted) {
      return std::ranges::any_of(wanted, [&](std::int32_t row) { return row >= 0 && row < end_of_first; });
    };
    Pulls rest(args.rest);
    list_pulls(args, row_here, is_first, pulls, pairs);
    list_pulls(
        args, row_here, [&](auto wanted) { return !is_first(wanted); }, rest, pairs);
    rest.end_pulls();
    rest.close();
  }
  close(pulls);
  close(pairs);
  auto *row_begin = args.row_begin.data<std::int32_t>(), *pair_begin = args.pair_begin.data<std::int32_t>();
  for (Index row = 0; row <= rows; ++row) row_begin[row] = static_cast<std::int32_t>(row * top_k * args.ranks.slices);
  for (Index pair = 0; pair <= own; ++pair) pair_begin[pair] = static_cast<std::int32_t>(pair * args.ranks.slices);
}

}  // namespace megalith::ops::cpu
