#include "megalith/ops/router.h"

#include <cmath>

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/router_kernels.h"

namespace megalith::ops {
namespace {

void check_rules(const RouterRules& rules, Index experts, std::string_view op) {
  const auto refuse = [&](std::string_view what, Index value, const std::string& rule) {
    throw ShapeError(str("[", op, ".", what, "] = ", value, ": must be ", rule));
  };
  if (experts < 1 || experts > kMaxRouterExperts) refuse("experts", experts, str("in 1 .. ", kMaxRouterExperts));
  if (rules.top_k < 1 || rules.top_k > experts) refuse("top_k", rules.top_k, str("in 1 .. ", experts));
  if (rules.num_groups < 1 || rules.num_groups > kMaxRouterGroups || experts % rules.num_groups != 0)
    refuse("num_groups", rules.num_groups,
           str("at least 1, at most ", kMaxRouterGroups, ", and divide the ", experts, " experts"));
  if (rules.group_top_k < 1 || rules.group_top_k > rules.num_groups)
    refuse("group_top_k", rules.group_top_k, str("in 1 .. ", rules.num_groups));
  const Index within = experts / rules.num_groups * rules.group_top_k;
  if (rules.top_k > within)
    refuse("top_k", rules.top_k, str("at most ", within, ", the experts of ", rules.group_top_k, " groups"));
}

}  // namespace

void skew_logits(Exec& ex, const Tensor& logits, double skew) {
  expect_wide(ex, logits, "skew_logits", "skew_logits.logits");
  const Index experts = dims<2>(logits, "skew_logits.logits")[1];
  if (experts > kMaxRouterExperts)
    throw ShapeError(str("[skew_logits.logits] experts = ", experts, ": must be at most ", kMaxRouterExperts));
  if (!std::isfinite(skew)) throw ShapeError(str("[skew_logits.skew] skew = ", skew, ": must be finite"));
  run_kernel(
      ex, {.name = "skew_logits", .reads = {logits}, .writes = {logits}}, [=] { cpu::skew_logits(logits, skew); },
      [=](auto&, auto stream) { cuda::skew_logits(stream, logits, skew); });
}

void router_forward(Exec& ex, const RouterForward& args) {
  expect_wide(ex, args.logits, "router", "router.logits");
  const auto [tokens, experts] = dims<2>(args.logits, "router.logits");
  const DType dtype = args.logits.dtype();
  check_rules(args.rules, experts, "router");
  if (args.bias) expect_like(args.bias, {experts}, dtype, "router.bias");
  expect_like(args.probabilities, {tokens, experts}, dtype, "router.probabilities");
  expect_like(args.experts, {tokens, args.rules.top_k}, DType::i32, "router.experts");
  expect_like(args.weights, {tokens, args.rules.top_k}, dtype, "router.weights");
  const Index runs = dims<2>(args.counts, "router.counts")[0];
  expect_like(args.counts, {runs, experts}, DType::i64, "router.counts");
  check_runs(args.runs, tokens, runs, "router.counts");
  const bool given = args.choice == RouterChoice::given;
  run_kernel(
      ex,
      {.name = "router",
       .reads = {args.logits, args.bias, given ? args.experts : Tensor()},
       .writes = {args.probabilities, given ? Tensor() : args.experts, args.weights, args.counts}},
      [args] { cpu::router_forward(args); }, [args](auto&, auto stream) { cuda::router_forward(stream, args); });
}

void router_backward(Exec& ex, const RouterBackward& args) {
  expect_wide(ex, args.logits, "router_backward", "router_backward.logits");
  const auto [tokens, experts] = dims<2>(args.logits, "router_backward.logits");
  const DType dtype = args.logits.dtype();
  check_rules(args.rules, experts, "router_backward");
  expect_like(args.probabilities, {tokens, experts}, dtype, "router_backward.probabilities");
  expect_like(args.experts, {tokens, args.rules.top_k}, DType::i32, "router_backward.experts");
  expect_like(args.d_weights, {tokens, args.rules.top_k}, dtype, "router_backward.d_weights");
  if (args.d_probabilities)
    expect_like(args.d_probabilities, {tokens, experts}, dtype, "router_backward.d_probabilities");
  expect_like(args.d_logits, {tokens, experts}, dtype, "router_backward.d_logits");
  run_kernel(
      ex,
      {.name = "router_backward",
       .reads = {args.logits, args.probabilities, args.experts, args.d_weights, args.d_probabilities},
       .writes = {args.d_logits}},
      [args] { cpu::router_backward(args); }, [args](auto&, auto stream) { cuda::router_backward(stream, args); });
}

void check_runs(const TokenRuns& runs, Index tokens, Index count, std::string_view what) {
  if (runs.seq_len < 0 || runs.first_row < 0)
    throw ShapeError(
        str("[", what, "] seq_len, first_row = ", runs.seq_len, ", ", runs.first_row, ": must be at least 0"));
  const Index needed = tokens == 0 ? 1 : runs.of(tokens - 1) + 1;
  if (count >= needed) return;
  throw ShapeError(str("[", what, "] runs = ", count, ": must be at least ", needed, ", as ", tokens, " rows from row ",
                       runs.first_row, " on reach into run ", needed - 1));
}

}  // namespace megalith::ops
