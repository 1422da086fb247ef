#include "megalith/ops/cross_entropy.h"

#include "megalith/ops/cross_entropy_kernels.h"
#include "megalith/ops/dispatch.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

void cross_entropy(Exec& ex, const CrossEntropy& args) {
  expect_float(ex, args.logits, "cross_entropy");
  const auto [tokens, columns] = dims<2>(args.logits, "cross_entropy.logits");
  const DType sum_dtype = statistics_dtype(args.logits.dtype());
  expect_like(args.targets, {tokens}, DType::i32, "cross_entropy.targets");
  if (args.step_state) expect_struct<StepState>(args.step_state, "cross_entropy.step_state");
  expect_like(args.loss, {tokens}, sum_dtype, "cross_entropy.loss");
  expect_like(args.loss_sum, {1}, DType::f64, "cross_entropy.loss_sum");
  expect_vocabulary(0, args.vocab_size, "cross_entropy");
  const Tensor statistics = ex.tensor({3, ex.device() == Device::cpu ? tokens : 0}, sum_dtype);
  run_kernel(
      ex,
      {.name = "cross_entropy",
       .reads = {args.logits, args.targets, args.step_state, args.loss_sum},
       .writes = {args.logits, args.loss, args.loss_sum},
       .scratch = statistics},
      [args, statistics] { cpu::cross_entropy(args, statistics); },
      [args](auto&, auto stream) { cuda::cross_entropy(stream, args); });
}

void logits_max(Exec& ex, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size) {
  expect_float(ex, logits, "logits_max");
  const auto [tokens, held] = dims<2>(logits, "logits_max.logits");
  expect_like(row_max, {tokens}, statistics_dtype(logits.dtype()), "logits_max.row_max");
  expect_vocabulary(first_id, vocab_size, "logits_max");
  run_kernel(
      ex, {.name = "logits_max", .reads = {logits}, .writes = {row_max}},
      [=] { cpu::logits_max(logits, row_max, first_id, vocab_size); },
      [=](auto&, auto stream) { cuda::logits_max(stream, logits, row_max, first_id, vocab_size); });
}

void logits_sum_exp(Exec& ex, const LogitsSumExp& args) {
  expect_float(ex, args.logits, "logits_sum_exp");
  const auto [tokens, held] = dims<2>(args.logits, "logits_sum_exp.logits");
  const DType sum_dtype = statistics_dtype(args.logits.dtype());
  expect_like(args.row_max, {tokens}, sum_dtype, "logits_sum_exp.row_max");
  expect_like(args.targets, {tokens}, DType::i32, "logits_sum_exp.targets");
  expect_like(args.sums, {2, tokens}, sum_dtype, "logits_sum_exp.sums");
  expect_vocabulary(args.first_id, args.vocab_size, "logits_sum_exp");
  run_kernel(
      ex,
      {.name = "logits_sum_exp",
       .reads = {args.logits, args.row_max, args.targets},
       .writes = {args.logits, args.sums}},
      [args] { cpu::logits_sum_exp(args); }, [args](auto&, auto stream) { cuda::logits_sum_exp(stream, args); });
}

void loss_from_sums(Exec& ex, const LossFromSums& args) {
  expect_float(ex, args.sums, "loss_from_sums");
  const Index tokens = dims<2>(args.sums, "loss_from_sums.sums")[1];
  expect_shape(args.sums, {2, tokens}, "loss_from_sums.sums");
  expect_like(args.targets, {tokens}, DType::i32, "loss_from_sums.targets");
  expect_like(args.loss, {tokens}, args.sums.dtype(), "loss_from_sums.loss");
  expect_like(args.loss_sum, {1}, DType::f64, "loss_from_sums.loss_sum");
  expect_vocabulary(0, args.vocab_size, "loss_from_sums");
  run_kernel(
      ex,
      {.name = "loss_from_sums",
       .reads = {args.sums, args.targets, args.loss_sum},
       .writes = {args.loss, args.loss_sum}},
      [args] { cpu::loss_from_sums(args); }, [args](auto&, auto stream) { cuda::loss_from_sums(stream, args); });
}

void logits_backward(Exec& ex, const LogitsBackward& args) {
  expect_float(ex, args.logits, "logits_backward");
  const auto [tokens, held] = dims<2>(args.logits, "logits_backward.logits");
  expect_like(args.sums, {2, tokens}, statistics_dtype(args.logits.dtype()), "logits_backward.sums");
  expect_like(args.targets, {tokens}, DType::i32, "logits_backward.targets");
  expect_struct<StepState>(args.step_state, "logits_backward.step_state");
  run_kernel(
      ex,
      {.name = "logits_backward",
       .reads = {args.logits, args.sums, args.targets, args.step_state},
       .writes = {args.logits}},
      [args] { cpu::logits_backward(args); }, [args](auto&, auto stream) { cuda::logits_backward(stream, args); });
}

}  // namespace megalith::ops
