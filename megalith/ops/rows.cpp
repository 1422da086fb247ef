#include "megalith/ops/rows.h"

#include <limits>

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/rows_kernels.h"

namespace megalith::ops {

void expect_choices(Index tokens, Index top_k, std::string_view op) {
  if (top_k < 1 || top_k > kMaxChoices)
    throw ShapeError(str("[", op, "] top_k = ", top_k, ": must be in 1 .. ", kMaxChoices));
  if (tokens <= std::numeric_limits<std::int32_t>::max() / top_k) return;
  throw ShapeError(str("[", op, "] pairs = ", tokens, " x ", top_k, ": must be below 2^31, as maps hold i32"));
}

Index rows_to_build(Index pairs, Index experts, Index rows_per_expert, Index alignment) {
  if (rows_per_expert > 0) return experts * round_up(rows_per_expert, alignment);
  return capacity_of_groups(pairs, experts, alignment);
}

void build_rows(Exec& ex, const BuildRows& args) {
  const auto [tokens, top_k] = dims<2>(args.experts, "build_rows.experts");
  const auto [experts] = dims<1>(args.groups.begin, "build_rows.groups.begin");
  const auto [rows] = dims<1>(args.pair_of, "build_rows.pair_of");
  expect_dtype(args.experts, DType::i32, "build_rows.experts");
  expect_choices(tokens, top_k, "build_rows");
  if (experts < 1 || experts > kMaxGroups)
    throw ShapeError(str("[build_rows.groups] experts = ", experts, ": must be in 1 .. ", kMaxGroups));
  if (args.rows_per_expert < 0)
    throw ShapeError(str("[build_rows] rows_per_expert = ", args.rows_per_expert, ": must be at least 0"));
  if (args.groups.alignment < 1)
    throw ShapeError(str("[build_rows.groups] alignment = ", args.groups.alignment, ": must be at least 1"));
  expect_like(args.groups.begin, {experts}, DType::i32, "build_rows.groups.begin");
  expect_like(args.groups.rows, {experts}, DType::i32, "build_rows.groups.rows");
  expect_like(args.row_of, {tokens, top_k}, DType::i32, "build_rows.row_of");
  expect_like(args.pair_of, {rows_to_build(tokens * top_k, experts, args.rows_per_expert, args.groups.alignment)},
              DType::i32, "build_rows.pair_of");
  if (rows > std::numeric_limits<std::int32_t>::max())
    throw ShapeError(str("[build_rows.pair_of] rows = ", rows, ": must be below 2^31, as maps hold i32"));
  const Index parts = ex.device() == Device::cpu ? 0 : cuda::row_map_parts(tokens * top_k);
  const Tensor scratch = ex.tensor({parts, experts}, DType::i32);
  run_kernel(
      ex,
      {.name = "build_rows",
       .reads = {args.experts},
       .writes = {args.groups.begin, args.groups.rows, args.row_of, args.pair_of},
       .scratch = scratch},
      [args] { cpu::build_rows(args); },
      [args, scratch](auto&, auto stream) { cuda::build_rows(stream, args, scratch); });
}

void permute_rows(Exec& ex, const PermuteRows& args) {
  expect_float(ex, args.x, "permute_rows");
  const auto [tokens, hidden] = dims<2>(args.x, "permute_rows.x");
  const auto [rows] = dims<1>(args.pair_of, "permute_rows.pair_of");
  const DType dtype = args.x.dtype();
  expect_choices(tokens, args.top_k, "permute_rows");
  expect_dtype(args.pair_of, DType::i32, "permute_rows.pair_of");
  if (args.row_of) expect_like(args.row_of, {tokens, args.top_k}, DType::i32, "permute_rows.row_of");
  expect_like(args.rows, {rows, hidden}, dtype, "permute_rows.rows");
  run_kernel(
      ex, {.name = "permute_rows", .reads = {args.x, args.pair_of, args.row_of}, .writes = {args.rows}},
      [args] { cpu::permute_rows(args); }, [args](auto&, auto stream) { cuda::permute_rows(stream, args); });
}

void sum_rows(Exec& ex, const SumRows& args) {
  expect_float(ex, args.rows, "sum_rows");
  const Index hidden = dims<2>(args.rows, "sum_rows.rows")[1];
  const auto [tokens, top_k] = dims<2>(args.row_of, "sum_rows.row_of");
  const DType dtype = args.rows.dtype();
  expect_choices(tokens, top_k, "sum_rows");
  expect_dtype(args.row_of, DType::i32, "sum_rows.row_of");
  if (args.weights) expect_like(args.weights, {tokens, top_k}, statistics_dtype(dtype), "sum_rows.weights");
  expect_like(args.y, {tokens, hidden}, dtype, "sum_rows.y");
  run_kernel(
      ex, {.name = "sum_rows", .reads = {args.rows, args.row_of, args.weights}, .writes = {args.y}},
      [args] { cpu::sum_rows(args); }, [args](auto&, auto stream) { cuda::sum_rows(stream, args); });
}

}  // namespace megalith::ops
