#include "megalith/ops/expert_load.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/expert_load_kernels.h"
#include "megalith/ops/step_end.h"

namespace megalith::ops {

void add_counts(Exec& ex, const Tensor& from, const Tensor& to) {
  const Index experts = dims<2>(from, "add_counts.from")[1];
  expect_dtype(from, DType::i64, "add_counts.from");
  expect_like(to, {experts}, DType::i64, "add_counts.to");
  run_kernel(
      ex, {.name = "add_counts", .reads = {from, to}, .writes = {to}}, [=] { cpu::add_counts(from, to); },
      [=](auto&, auto stream) { cuda::add_counts(stream, from, to); });
}

void count_dropped(Exec& ex, const Tensor& kept, const Tensor& to) {
  expect_dtype(kept, DType::i32, "count_dropped.kept");
  expect_like(to, {1}, DType::i64, "count_dropped.to");
  run_kernel(
      ex, {.name = "count_dropped", .reads = {kept, to}, .writes = {to}}, [=] { cpu::count_dropped(kept, to); },
      [=](auto&, auto stream) { cuda::count_dropped(stream, kept, to); });
}

void update_experts(Exec& ex, const UpdateExperts& args) {
  const auto [experts] = dims<1>(args.counts, "update_experts.counts");
  expect_dtype(args.counts, DType::i64, "update_experts.counts");
  expect_struct<StepVerdict>(args.verdict, "update_experts.verdict");
  const DType dtype = args.bias ? args.bias.dtype() : args.shares ? args.shares.dtype() : DType::f32;
  if (args.bias) expect_like(args.bias, {experts}, dtype, "update_experts.bias");
  if (args.shares) expect_like(args.shares, {experts}, dtype, "update_experts.shares");
  run_kernel(
      ex,
      {.name = "update_experts", .reads = {args.counts, args.verdict, args.bias}, .writes = {args.bias, args.shares}},
      [args] { cpu::update_experts(args); }, [args](auto&, auto stream) { cuda::update_experts(stream, args); });
}

void expert_bias_range(Exec& ex, const Tensor& bias, const Tensor& range) {
  const auto [experts] = dims<1>(bias, "expert_bias_range.bias");
  if (experts < 1) throw ShapeError("[expert_bias_range.bias] experts = 0: must be at least 1");
  expect_like(range, {2}, DType::f64, "expert_bias_range.range");
  run_kernel(
      ex, {.name = "expert_bias_range", .reads = {bias}, .writes = {range}},
      [=] { cpu::expert_bias_range(bias, range); },
      [=](auto&, auto stream) { cuda::expert_bias_range(stream, bias, range); });
}

void counts_of_shares(Exec& ex, const Tensor& shares, const Tensor& counts, double total) {
  const auto [experts] = dims<1>(shares, "counts_of_shares.shares");
  expect_like(counts, {1, experts}, DType::i64, "counts_of_shares.counts");
  run_kernel(
      ex, {.name = "counts_of_shares", .reads = {shares}, .writes = {counts}},
      [=] { cpu::counts_of_shares(shares, counts, total); },
      [=](auto&, auto stream) { cuda::counts_of_shares(stream, shares, counts, total); });
}

}  // namespace megalith::ops
