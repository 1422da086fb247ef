#include "megalith/ops/row_exchange.h"

#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/row_exchange_kernels.h"

namespace megalith::ops {
namespace {

/// `which`: the name of the argument.
void check_pulls(const PullTables& pulls, Index capacity, Index rows, std::string_view which) {
  const Arguments argument{which};
  argument.like(pulls.counts, {2}, DType::i32, "counts");
  argument.like(pulls.sources, {capacity, 2}, DType::i32, "sources");
  argument.like(pulls.begin, {capacity + 1}, DType::i32, "begin");
  argument.like(pulls.wants, {rows}, DType::i32, "wants");
}

void check_sizes(const PlanExchange& args) {
  const ExpertRanks& at = args.ranks;
  if (at.local_experts < 1 || at.slices < 1 || args.num_experts < 1 || args.num_experts % at.local_experts != 0)
    throw ShapeError(str("[plan_exchange] experts, local_experts, slices = ", args.num_experts, ", ", at.local_experts,
                         ", ", at.slices, ": must be at least 1, and the second divide the first"));
  if (args.num_experts > kMaxGroups)
    throw ShapeError(str("[plan_exchange] experts = ", args.num_experts, ": must be at most ", kMaxGroups));
  if (args.groups.alignment < 1 || args.rows_of_each < 0)
    throw ShapeError(str("[plan_exchange] alignment, rows_of_each = ", args.groups.alignment, ", ", args.rows_of_each,
                         ": must be at least 1 and 0"));
  if (args.first_groups < 0 || args.first_groups >= std::max<Index>(1, at.local_experts))
    throw ShapeError(str("[plan_exchange] first_groups = ", args.first_groups, ": must be from 0 to below ",
                         at.local_experts, ", the local experts"));
}

}  // namespace

Index pairs_to_receive(const PlanExchange& args) {
  const Index ranks = args.experts.dim(0), rows = args.experts.dim(1), top_k = args.experts.dim(2);
  if (args.rows_of_each > 0) return ranks * args.ranks.local_experts * args.rows_of_each;
  const Index worst = ranks * rows * std::min(top_k, args.ranks.local_experts);
  return args.most_pairs > 0 ? std::min(worst, args.most_pairs) : worst;
}

void plan_exchange(Exec& ex, const PlanExchange& args) {
  const auto [ranks, rows, top_k] = dims<3>(args.experts, "plan_exchange.experts");
  expect_dtype(args.experts, DType::i32, "plan_exchange.experts");
  check_sizes(args);
  const Index pairs = pairs_to_receive(args), local = args.ranks.local_experts;
  const Index results = capacity_of_groups(pairs, local, args.groups.alignment), own = rows * top_k;
  expect_like(args.groups.begin, {local}, DType::i32, "plan_exchange.groups.begin");
  expect_like(args.groups.rows, {local}, DType::i32, "plan_exchange.groups.rows");
  check_pulls(args.rows, ranks * rows, results, "plan_exchange.rows");
  if (args.first_groups > 0) check_pulls(args.rest, ranks * rows, results, "plan_exchange.rest");
  check_pulls(args.pairs, pairs, results, "plan_exchange.pairs");
  expect_like(args.places, {own * args.ranks.slices, 2}, DType::i32, "plan_exchange.places");
  expect_like(args.row_begin, {rows + 1}, DType::i32, "plan_exchange.row_begin");
  expect_like(args.pair_begin, {own + 1}, DType::i32, "plan_exchange.pair_begin");
  for (const Index size : {results, ranks * rows, own * args.ranks.slices}) {
    if (size >= std::numeric_limits<std::int32_t>::max())
      throw ShapeError(str("[plan_exchange] ", size, " rows: must be below 2^31 - 1, as lists hold i32"));
  }
  const bool on_cpu = ex.device() == Device::cpu;
  const Tensor scratch = on_cpu ? ex.tensor({2, ranks, args.num_experts}, DType::i64)
                                : ex.tensor({cuda::ExchangeScratch(args).numbers()}, DType::i32);
  const Tensor row_of = on_cpu ? ex.tensor(args.experts.shape(), DType::i32) : Tensor();
  run_kernel(
      ex,
      {.name = "plan_exchange",
       .reads = {args.experts},
       .writes = {args.groups.begin, args.groups.rows, args.rows.counts, args.rows.sources, args.rows.begin,
                  args.rows.wants, args.rest.counts, args.rest.sources, args.rest.begin, args.rest.wants,
                  args.pairs.counts, args.pairs.sources, args.pairs.begin, args.pairs.wants, args.places,
                  args.row_begin, args.pair_begin, row_of},
       .scratch = scratch},
      [args, scratch, row_of] { cpu::plan_exchange(args, scratch, row_of); },
      [args, scratch](auto&, auto stream) { cuda::plan_exchange(stream, args, scratch); });
}

}  // namespace megalith::ops
