#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/rows_kernels.h"

namespace megalith::ops::cpu {

/// A counting sort by one thread. It takes a few operations per pair, where permute_rows() moves a row.
void build_rows(const BuildRows& args) {
  const Index pairs = args.experts.numel(), experts = args.groups.count(), top_k = args.experts.dim(1);
  const auto* expert_of = args.experts.data<std::int32_t>();
  auto *begin = args.groups.begin.data<std::int32_t>(), *count = args.groups.rows.data<std::int32_t>();
  auto *row_of = args.row_of.data<std::int32_t>(), *pair_of = args.pair_of.data<std::int32_t>();
  std::fill_n(count, experts, 0);
  for (Index pair = 0; pair < pairs; ++pair) {
    const std::int32_t e = expert_of[pair];
    if (e < -1 || e >= experts)
      throw InputError(str("[build_rows] experts[", pair / top_k, ", ", pair % top_k, "] = ", e, ": must be in -1 .. ",
                           experts - 1));
    if (e >= 0) ++count[e];
  }
  Index next = 0;
  for (Index e = 0; e < experts; ++e) {
    begin[e] = static_cast<std::int32_t>(next);
    next += round_up(args.rows_per_expert == 0 ? Index{count[e]} : args.rows_per_expert, args.groups.alignment);
    count[e] = 0;
  }
  std::fill_n(pair_of, next, kZeroRow);
  std::fill(pair_of + next, pair_of + args.pair_of.numel(), kUnusedRow);
  for (Index pair = 0; pair < pairs; ++pair) {
    const std::int32_t e = expert_of[pair];
    row_of[pair] = -1;
    if (e < 0 || (args.rows_per_expert > 0 && count[e] == args.rows_per_expert)) continue;
    row_of[pair] = begin[e] + count[e]++;
    pair_of[row_of[pair]] = static_cast<std::int32_t>(pair);
  }
  if (args.rows_per_expert > 0) std::fill_n(count, experts, static_cast<std::int32_t>(args.rows_per_expert));
}

void permute_rows(const PermuteRows& args) {
  dispatch_float(args.x.dtype(), "permute_rows", [&]<class T>() {
    const Index hidden = args.x.dim(1);
    const T* x = args.x.data<T>();
    T* rows = args.rows.data<T>();
    const auto* pair_of = args.pair_of.data<std::int32_t>();
    parallel_rows(args.rows.dim(0), hidden, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        if (pair_of[r] >= 0)
          std::copy_n(x + pair_of[r] / args.top_k * hidden, hidden, rows + r * hidden);
        else if (pair_of[r] == kZeroRow)
          std::fill_n(rows + r * hidden, hidden, T{});
      }
    });
  });
}

void sum_rows(const SumRows& args) {
  dispatch_float(args.rows.dtype(), "sum_rows", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index hidden = args.rows.dim(1), top_k = args.row_of.dim(1);
    const T* rows = args.rows.data<T>();
    const A* weights = args.weights ? args.weights.data<A>() : nullptr;
    const auto* row_of = args.row_of.data<std::int32_t>();
    T* y = args.y.data<T>();
    const auto sum = kernels<T>().elementwise.weighted_sum;
    parallel_rows(args.y.dim(0), hidden, [&](Index begin, Index count) {
      const T* of_token[kMaxChoices];
      A factors[kMaxChoices];
      for (Index t = begin; t < begin + count; ++t) {
        Index found = 0;
        for (Index pair = t * top_k; pair < (t + 1) * top_k; ++pair) {
          if (row_of[pair] < 0) continue;
          of_token[found] = rows + row_of[pair] * hidden;
          factors[found++] = weights == nullptr ? A{1} : weights[pair];
        }
        sum(of_token, factors, found, y + t * hidden, hidden);
      }
    });
  });
}

}  // namespace megalith::ops::cpu
