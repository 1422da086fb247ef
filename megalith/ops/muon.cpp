#include "megalith/ops/muon.h"

#include "megalith/ops/adamw.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/masters.h"
#include "megalith/ops/muon_kernels.h"

namespace megalith::ops {
namespace {

/// The rows of `matrix` must be those that `runs` names in `weight`.
void check_runs(const Tensor& weight, const RowRuns& runs, const Tensor& matrix, std::string_view op) {
  const auto [rows, columns] = dims<2>(weight, "muon.weight");
  const bool fits = runs.run >= 1 && runs.first >= 0 && runs.first + runs.run <= runs.stride && rows % runs.stride == 0;
  if (!fits)
    throw ShapeError(str("[", op, ".runs] {run ", runs.run, ", stride ", runs.stride, ", first ", runs.first,
                         "}: must lie in a stride that divides the ", rows, " rows of the weight"));
  expect_shape(matrix, {rows / runs.stride * runs.run, columns}, "muon.matrix");
}

}  // namespace

void muon_momentum(Exec& ex, const MuonMomentum& args) {
  const auto [numel] = dims<1>(args.grad, "muon_momentum.grad");
  expect_wide(ex, args.grad, "muon_momentum", "muon_momentum.grad");
  expect_like(args.m, {numel}, args.grad.dtype(), "muon_momentum.m");
  expect_struct<StepVerdict>(args.verdict, "muon_momentum.verdict");
  run_kernel(
      ex, {.name = "muon_momentum", .reads = {args.grad, args.m, args.verdict}, .writes = {args.grad, args.m}},
      [args] { cpu::muon_momentum(args); }, [args](auto&, auto stream) { cuda::muon_momentum(stream, args); });
}

void muon_update(Exec& ex, const MuonUpdate& args) {
  const auto [numel] = dims<1>(args.update, "muon_update.update");
  expect_masters(ex, args.masters, numel, "muon_update");
  expect_dtype(args.update, args.masters.dtype(), "muon_update.update");
  expect_like(args.decays, {ceil_div(numel, kDecayGroup)}, DType::u8, "muon_update.decays");
  expect_struct<StepVerdict>(args.verdict, "muon_update.verdict");
  run_kernel(
      ex,
      {.name = "muon_update",
       .reads = {args.masters.whole, args.masters.copy, args.masters.low, args.masters.carries, args.update,
                 args.decays, args.verdict},
       .writes = {args.masters.whole, args.masters.copy, args.masters.low, args.masters.carries}},
      [args] { cpu::muon_update(args); }, [args](auto&, auto stream) { cuda::muon_update(stream, args); });
}

void take_runs(Exec& ex, const Tensor& weight, const RowRuns& runs, const Tensor& matrix) {
  expect_wide(ex, weight, "take_runs", "take_runs.weight");
  check_runs(weight, runs, matrix, "take_runs");
  expect_dtype(matrix, weight.dtype(), "take_runs.matrix");
  run_kernel(
      ex, {.name = "take_runs", .reads = {weight}, .writes = {matrix}}, [=] { cpu::take_runs(weight, runs, matrix); },
      [=](auto&, auto stream) { cuda::take_runs(stream, weight, runs, matrix); });
}

void put_runs(Exec& ex, const PutRuns& args) {
  expect_wide(ex, args.weight, "put_runs", "put_runs.weight");
  expect_float(ex, args.matrix, "put_runs");
  check_runs(args.weight, args.runs, args.matrix, "put_runs");
  run_kernel(
      ex, {.name = "put_runs", .reads = {args.matrix, args.weight}, .writes = {args.weight}},
      [args] { cpu::put_runs(args); }, [args](auto&, auto stream) { cuda::put_runs(stream, args); });
}

void add_up_rows(Exec& ex, const Tensor& parts, const Tensor& totals) {
  expect_dtype(parts, DType::f64, "add_up_rows.parts");
  expect_like(totals, {dims<2>(parts, "add_up_rows.parts")[0]}, DType::f64, "add_up_rows.totals");
  run_kernel(
      ex, {.name = "add_up_rows", .reads = {parts}, .writes = {totals}}, [=] { cpu::add_up_rows(parts, totals); },
      [=](auto&, auto stream) { cuda::add_up_rows(stream, parts, totals); });
}

void divide_by_norms(Exec& ex, const Tensor& x, const Tensor& squares, const Tensor& out) {
  expect_wide(ex, x, "divide_by_norms", "divide_by_norms.x");
  expect_like(squares, {dims<2>(x, "divide_by_norms.x")[0]}, DType::f64, "divide_by_norms.squares");
  expect_float(ex, out, "divide_by_norms");
  expect_shape(out, x.shape(), "divide_by_norms.out");
  run_kernel(
      ex, {.name = "divide_by_norms", .reads = {x, squares}, .writes = {out}},
      [=] { cpu::divide_by_norms(x, squares, out); },
      [=](auto&, auto stream) { cuda::divide_by_norms(stream, x, squares, out); });
}

void linear_sum(Exec& ex, const LinearSum& args) {
  expect_float(ex, args.x, "linear_sum");
  expect_like(args.y, args.x.shape(), args.x.dtype(), "linear_sum.y");
  expect_like(args.out, args.x.shape(), args.x.dtype(), "linear_sum.out");
  run_kernel(
      ex, {.name = "linear_sum", .reads = {args.x, args.y}, .writes = {args.out}}, [args] { cpu::linear_sum(args); },
      [args](auto&, auto stream) { cuda::linear_sum(stream, args); });
}

}  // namespace megalith::ops
