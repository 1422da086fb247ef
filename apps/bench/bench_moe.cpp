#include "apps/bench/bench_moe.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/router.h"
#include "megalith/ops/rows.h"

namespace megalith::apps {
namespace {

/// Rows with their chosen experts, and their order by expert.
struct Routed {
  Tensor logits, probabilities, experts, weights, choices;  // outputs of the router
  Tensor row_of, pair_of;
  ops::GroupRows groups;
  std::vector<std::int32_t> host_groups;
};

Routed route(OpsRunner& bench, const OpsBench& o) {
  const Index rows = o.tokens * o.top_k;
  const DType wide = statistics_dtype(bench.dtype());
  Routed r{.logits = bench.random({o.tokens, o.experts}, wide),
           .probabilities = bench.empty({o.tokens, o.experts}, wide),
           .experts = bench.empty({o.tokens, o.top_k}, DType::i32),
           .weights = bench.empty({o.tokens, o.top_k}, wide),
           .choices = bench.empty({1, o.experts}, DType::i64),
           .row_of = bench.empty({o.tokens, o.top_k}, DType::i32),
           .pair_of = bench.empty({rows}, DType::i32),
           .groups = {.begin = bench.empty({o.experts}, DType::i32), .rows = bench.empty({o.experts}, DType::i32)},
           .host_groups = std::vector<std::int32_t>(static_cast<std::size_t>(2 * o.experts))};
  bench.measure("router", 0, static_cast<double>(r.logits.bytes() + r.probabilities.bytes()), [&](Exec& e) {
    ops::router_forward(e, {.logits = r.logits,
                            .bias = {},
                            .probabilities = r.probabilities,
                            .experts = r.experts,
                            .weights = r.weights,
                            .counts = r.choices,
                            .rules = {.top_k = o.top_k}});
  });
  bench.measure("build_rows", 0, static_cast<double>(3 * r.experts.bytes()), [&](Exec& e) {
    ops::build_rows(e, {.experts = r.experts, .groups = r.groups, .row_of = r.row_of, .pair_of = r.pair_of});
  });
  bench.ex().copy(r.host_groups.data(), r.groups.begin.raw(), r.groups.begin.bytes());
  bench.ex().copy(r.host_groups.data() + o.experts, r.groups.rows.raw(), r.groups.rows.bytes());
  bench.ex().synchronize();
  r.groups.host = r.host_groups;
  return r;
}

/// A layer of experts from `in` to `out` features, as grouped GEMM and as one GEMM of all rows.
void measure_products(OpsRunner& bench, const OpsBench& o, const Routed& routed, const char* name, Index in,
                      Index out) {
  const Index rows = o.tokens * o.top_k;
  const Tensor x = bench.random({rows, in}), w = bench.random({o.experts, out, in}), y = bench.empty({rows, out}),
               dy = bench.random({rows, out}), dx = bench.empty({rows, in}), dw = bench.gradient({o.experts, out, in}),
               one = bench.random({out, in}), d_one = bench.gradient({out, in});
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const ops::GroupRows& groups = routed.groups;
  constexpr auto kTurned = ops::Transpose::yes;
  const auto measure = [&](const char* what, const std::function<void(Exec&)>& op) {
    bench.measure(str(name, " ", rows, " x ", out, " x ", in, " ", what), flops, 0, op);
  };
  measure("grouped", [&](Exec& e) { ops::grouped_matmul(e, {.x = x, .w = w, .y = y, .groups = groups}); });
  measure("one product", [&](Exec& e) { ops::matmul(e, {.a = x, .b = one, .c = y, .transpose_b = kTurned}); });
  measure("dgrad grouped",
          [&](Exec& e) { ops::grouped_matmul_input_grad(e, {.dy = dy, .w = w, .dx = dx, .groups = groups}); });
  measure("dgrad one product", [&](Exec& e) { ops::matmul(e, {.a = dy, .b = one, .c = dx}); });
  measure("wgrad grouped",
          [&](Exec& e) { ops::grouped_matmul_weight_grad(e, {.dy = dy, .x = x, .dw = dw, .groups = groups}); });
  measure("wgrad one product", [&](Exec& e) {
    ops::matmul(e, {.a = dy, .b = x, .c = d_one, .transpose_a = kTurned, .write = ops::Write::accumulate});
  });
}

}  // namespace

void bench_moe(const OpsBench& o) {
  if (o.top_k > o.experts) throw ConfigError(str("--top-k = ", o.top_k, ": must be at most --experts = ", o.experts));
  OpsRunner bench(o);
  bench.measure_roofs();
  const Index rows = o.tokens * o.top_k;
  const Routed routed = route(bench, o);
  const Tensor x = bench.random({o.tokens, o.hidden}), in = bench.empty({rows, o.hidden}),
               y = bench.empty({o.tokens, o.hidden});
  const double one = static_cast<double>(x.bytes()), all = static_cast<double>(in.bytes());
  bench.measure("permute_rows", 0, one + all, [&](Exec& e) {
    ops::permute_rows(e, {.x = x, .pair_of = routed.pair_of, .rows = in, .top_k = o.top_k});
  });
  bench.measure("sum_rows", 0, one + all, [&](Exec& e) {
    ops::sum_rows(e, {.rows = in, .row_of = routed.row_of, .weights = routed.weights, .y = y});
  });
  measure_products(bench, o, routed, "up", o.hidden, 2 * o.ffn);
  measure_products(bench, o, routed, "down", o.ffn, o.hidden);
  bench.print();
}

}  // namespace megalith::apps
