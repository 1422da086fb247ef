#include "megalith/ops/expert_choices.h"

#include <limits>

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/expert_choices_kernels.h"

namespace megalith::ops {
namespace {

/// Checks that of_slices is [T, K P] for of_choices [T, K].
void check_slices(const Exec& ex, const Tensor& of_choices, const Tensor& of_slices, std::string_view op) {
  expect_wide(ex, of_choices, op, op);
  const auto [tokens, choices] = dims<2>(of_choices, op);
  const auto [rows, columns] = dims<2>(of_slices, op);
  if (choices < 1 || rows != tokens || columns % choices != 0 || columns == 0 ||
      of_slices.dtype() != of_choices.dtype())
    throw ShapeError(str("[", op, "] shapes ", of_choices.shape(), " and ", of_slices.shape(),
                         ": must be [T, K] and [T, K P] of one dtype"));
}

}  // namespace

void place_choices(Exec& ex, const PlaceChoices& args) {
  const auto [tokens, top_k] = dims<2>(args.experts, "place_choices.experts");
  expect_dtype(args.experts, DType::i32, "place_choices.experts");
  if (args.ranks.local_experts < 1 || args.ranks.slices < 1)
    throw ShapeError(str("[place_choices] local_experts, slices = ", args.ranks.local_experts, ", ", args.ranks.slices,
                         ": must be at least 1"));
  expect_like(args.destinations, {tokens, top_k * args.ranks.slices}, DType::i32, "place_choices.destinations");
  run_kernel(
      ex, {.name = "place_choices", .reads = {args.experts}, .writes = {args.destinations}},
      [args] { cpu::place_choices(args); }, [args](auto&, auto stream) { cuda::place_choices(stream, args); });
}

void repeat_choices(Exec& ex, const Tensor& of_choices, const Tensor& of_slices) {
  check_slices(ex, of_choices, of_slices, "repeat_choices");
  run_kernel(
      ex, {.name = "repeat_choices", .reads = {of_choices}, .writes = {of_slices}},
      [=] { cpu::repeat_choices(of_choices, of_slices); },
      [=](auto&, auto stream) { cuda::repeat_choices(stream, of_choices, of_slices); });
}

void sum_slices(Exec& ex, const Tensor& of_slices, const Tensor& of_choices) {
  check_slices(ex, of_choices, of_slices, "sum_slices");
  run_kernel(
      ex, {.name = "sum_slices", .reads = {of_slices}, .writes = {of_choices}},
      [=] { cpu::sum_slices(of_slices, of_choices); },
      [=](auto&, auto stream) { cuda::sum_slices(stream, of_slices, of_choices); });
}

namespace {

constexpr const char* kEvenChoices = "even_choices";

/// Checks the arguments.
auto kernel_of_even_choices(const EvenChoices& args) {
  dims<2>(args.experts, "even_choices.experts");
  expect_dtype(args.experts, DType::i32, "even_choices.experts");
  if (args.num_experts < args.experts.dim(1))
    throw ShapeError(
        str("[even_choices] num_experts = ", args.num_experts, ": must be at least top_k = ", args.experts.dim(1)));
  return kernel_of(
      kEvenChoices, [args] { cpu::even_choices(args); },
      [args](auto&, auto stream) { cuda::even_choices(stream, args); });
}

}  // namespace

void even_choices(Exec& ex, const EvenChoices& args) {
  ex.run({.name = kEvenChoices, .reads = {}, .writes = {args.experts}}, kernel_of_even_choices(args));
}

void even_choices_unplanned(Exec& ex, const EvenChoices& args) {
  ex.execute(kEvenChoices, kernel_of_even_choices(args));
}

void regroup_rows(Exec& ex, const RegroupRows& args) {
  const Index arrived = dims<2>(args.row_of, "regroup_rows.row_of")[0];
  expect_like(args.row_of, {arrived, 1}, DType::i32, "regroup_rows.row_of");
  if (args.groups.alignment < 1)
    throw ShapeError(str("[regroup_rows.groups] alignment = ", args.groups.alignment, ": must be at least 1"));
  const Index rows = capacity_of_groups(arrived, args.local_experts, args.groups.alignment);
  expect_like(args.arrived_at, {rows}, DType::i32, "regroup_rows.arrived_at");
  if (args.sources < 1 || args.local_experts < 1)
    throw ShapeError(str("[regroup_rows] sources, local_experts = ", args.sources, ", ", args.local_experts,
                         ": must be at least 1"));
  expect_like(args.groups.begin, {args.local_experts}, DType::i32, "regroup_rows.groups.begin");
  expect_like(args.groups.rows, {args.local_experts}, DType::i32, "regroup_rows.groups.rows");
  if (args.counts) {
    expect_dtype(args.counts, DType::i32, "regroup_rows.counts");
    const auto [sources, columns] = dims<2>(args.counts, "regroup_rows.counts");
    if (sources != args.sources || args.first < 0 || args.first + args.local_experts > columns)
      throw ShapeError(str("[regroup_rows.counts] shape ", args.counts.shape(), ": must have ", args.sources,
                           " rows, and columns ", args.first, " .. ", args.first + args.local_experts - 1));
  }
  if (rows > std::numeric_limits<std::int32_t>::max())
    throw ShapeError(str("[regroup_rows.arrived_at] rows = ", rows, ": must be below 2^31, as maps hold i32"));
  const Tensor segments = ex.tensor({2, args.sources * args.local_experts}, DType::i64);
  run_kernel(
      ex,
      {.name = "regroup_rows",
       .reads = {args.counts},
       .writes = {args.groups.begin, args.groups.rows, args.row_of, args.arrived_at},
       .scratch = segments},
      [args, segments] { cpu::regroup_rows(args, segments); },
      [args, segments](auto&, auto stream) { cuda::regroup_rows(stream, args, segments); });
}

}  // namespace megalith::ops
