#include "megalith/ops/cross_entropy.h"

#include "megalith/base/str.h"
#include "megalith/ops/cpu/cross_entropy.h"
#include "megalith/ops/dispatch.h"
#include "megalith/tensor/step_state.h"

namespace megalith::ops {
namespace {

void expect_vocabulary(Index first_id, Index vocab_size, std::string_view op) {
  if (first_id >= 0 && vocab_size >= 1) return;
  throw ShapeError(str("[", op, "] first_id, vocab_size = ", first_id, ", ", vocab_size,
                       ": first_id must be at least 0, vocab_size at least 1"));
}

}  // namespace

void logits_max(Exec& ex, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size) {
  expect_float(logits, "logits_max");
  const auto [tokens, held] = dims<2>(logits, "logits_max.logits");
  expect_like(row_max, {tokens}, logits.dtype(), "logits_max.row_max");
  expect_vocabulary(first_id, vocab_size, "logits_max");
  run_float(ex, {.name = "logits_max", .reads = {logits}, .writes = {row_max}}, logits.dtype(),
            [=]<class T>() { cpu::logits_max<T>(logits, row_max, first_id, vocab_size); });
}

void logits_sum_exp(Exec& ex, const LogitsSumExp& args) {
  expect_float(args.logits, "logits_sum_exp");
  const auto [tokens, held] = dims<2>(args.logits, "logits_sum_exp.logits");
  expect_like(args.row_max, {tokens}, args.logits.dtype(), "logits_sum_exp.row_max");
  expect_like(args.targets, {tokens}, DType::i32, "logits_sum_exp.targets");
  expect_like(args.sums, {2, tokens}, args.logits.dtype(), "logits_sum_exp.sums");
  expect_vocabulary(args.first_id, args.vocab_size, "logits_sum_exp");
  run_float(ex,
            {.name = "logits_sum_exp",
             .reads = {args.logits, args.row_max, args.targets},
             .writes = {args.logits, args.sums}},
            args.logits.dtype(), [args]<class T>() { cpu::logits_sum_exp<T>(args); });
}

void loss_from_sums(Exec& ex, const LossFromSums& args) {
  expect_float(args.sums, "loss_from_sums");
  const Index tokens = dims<2>(args.sums, "loss_from_sums.sums")[1];
  expect_shape(args.sums, {2, tokens}, "loss_from_sums.sums");
  expect_like(args.targets, {tokens}, DType::i32, "loss_from_sums.targets");
  expect_like(args.loss, {tokens}, args.sums.dtype(), "loss_from_sums.loss");
  expect_like(args.loss_sum, {1}, DType::f64, "loss_from_sums.loss_sum");
  expect_vocabulary(0, args.vocab_size, "loss_from_sums");
  run_float(ex,
            {.name = "loss_from_sums",
             .reads = {args.sums, args.targets, args.loss_sum},
             .writes = {args.loss, args.loss_sum}},
            args.sums.dtype(), [args]<class T>() { cpu::loss_from_sums<T>(args); });
}

void logits_backward(Exec& ex, const LogitsBackward& args) {
  expect_float(args.logits, "logits_backward");
  const auto [tokens, held] = dims<2>(args.logits, "logits_backward.logits");
  expect_like(args.sums, {2, tokens}, args.logits.dtype(), "logits_backward.sums");
  expect_like(args.targets, {tokens}, DType::i32, "logits_backward.targets");
  expect_like(args.step_state, {Index{sizeof(StepState)}}, DType::u8, "logits_backward.step_state");
  run_float(ex,
            {.name = "logits_backward",
             .reads = {args.logits, args.sums, args.targets, args.step_state},
             .writes = {args.logits}},
            args.logits.dtype(), [args]<class T>() { cpu::logits_backward<T>(args); });
}

}  // namespace megalith::ops
