#include "megalith/ops/router_losses.h"

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/router_losses_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {
namespace {

void check_factors(const LoadLossFactors& factors, std::string_view op) {
  if (factors.top_k >= 1 && factors.counted_tokens > 0 && factors.tokens > 0) return;
  throw ShapeError(str("[", op, "] top_k, counted_tokens, tokens = ", factors.top_k, ", ", factors.counted_tokens, ", ",
                       factors.tokens, ": must be above 0"));
}

}  // namespace

void sum_probabilities(Exec& ex, const SumProbabilities& args) {
  expect_wide(ex, args.probabilities, "sum_probabilities", "sum_probabilities.probabilities");
  const auto [tokens, experts] = dims<2>(args.probabilities, "sum_probabilities.probabilities");
  const DType dtype = args.probabilities.dtype();
  const Index runs = dims<2>(args.sums, "sum_probabilities.sums")[0];
  expect_like(args.sums, {runs, experts}, dtype, "sum_probabilities.sums");
  check_runs(args.runs, tokens, runs, "sum_probabilities.sums");
  const Tensor parts = ex.tensor({runs, run_parts(args.runs, tokens), experts}, dtype);
  run_kernel(
      ex, {.name = "sum_probabilities", .reads = {args.probabilities}, .writes = {args.sums}, .scratch = parts},
      [args, parts] { cpu::sum_probabilities(args, parts); },
      [args, parts](auto&, auto stream) { cuda::sum_probabilities(stream, args, parts); });
}

void load_loss(Exec& ex, const LoadLoss& args) {
  expect_wide(ex, args.sums, "load_loss", "load_loss.sums");
  const auto [runs, experts] = dims<2>(args.sums, "load_loss.sums");
  expect_like(args.counts, {runs, experts}, DType::i64, "load_loss.counts");
  expect_like(args.loss, {1}, DType::f64, "load_loss.loss");
  check_factors(args.factors, "load_loss");
  run_kernel(
      ex, {.name = "load_loss", .reads = {args.counts, args.sums, args.loss}, .writes = {args.loss}},
      [args] { cpu::load_loss(args); }, [args](auto&, auto stream) { cuda::load_loss(stream, args); });
}

void load_loss_backward(Exec& ex, const LoadLossBackward& args) {
  expect_wide(ex, args.probabilities, "load_loss_backward", "load_loss_backward.probabilities");
  const auto [tokens, experts] = dims<2>(args.probabilities, "load_loss_backward.probabilities");
  const DType dtype = args.probabilities.dtype();
  const Index runs = dims<2>(args.counts, "load_loss_backward.counts")[0];
  expect_like(args.counts, {runs, experts}, DType::i64, "load_loss_backward.counts");
  expect_struct<StepState>(args.step_state, "load_loss_backward.step_state");
  expect_like(args.d_probabilities, {tokens, experts}, dtype, "load_loss_backward.d_probabilities");
  check_factors(args.factors, "load_loss_backward");
  check_runs(args.runs, tokens, runs, "load_loss_backward.counts");
  run_kernel(
      ex,
      {.name = "load_loss_backward",
       .reads = {args.counts, args.probabilities, args.step_state},
       .writes = {args.d_probabilities}},
      [args] { cpu::load_loss_backward(args); },
      [args](auto&, auto stream) { cuda::load_loss_backward(stream, args); });
}

void z_loss(Exec& ex, const ZLoss& args) {
  expect_wide(ex, args.logits, "z_loss", "z_loss.logits");
  const Index tokens = dims<2>(args.logits, "z_loss.logits")[0];
  expect_like(args.loss, {1}, DType::f64, "z_loss.loss");
  const Tensor squares = ex.tensor({tokens}, args.logits.dtype());
  run_kernel(
      ex, {.name = "z_loss", .reads = {args.logits, args.loss}, .writes = {args.loss}, .scratch = squares},
      [args, squares] { cpu::z_loss(args, squares); },
      [args, squares](auto&, auto stream) { cuda::z_loss(stream, args, squares); });
}

void z_loss_backward(Exec& ex, const ZLossBackward& args) {
  expect_wide(ex, args.logits, "z_loss_backward", "z_loss_backward.logits");
  const auto [tokens, experts] = dims<2>(args.logits, "z_loss_backward.logits");
  expect_struct<StepState>(args.step_state, "z_loss_backward.step_state");
  expect_like(args.d_logits, {tokens, experts}, args.logits.dtype(), "z_loss_backward.d_logits");
  run_kernel(
      ex,
      {.name = "z_loss_backward", .reads = {args.logits, args.step_state, args.d_logits}, .writes = {args.d_logits}},
      [args] { cpu::z_loss_backward(args); }, [args](auto&, auto stream) { cuda::z_loss_backward(stream, args); });
}

}  // namespace megalith::ops
