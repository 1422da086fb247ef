#include <cstdint>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/router.h"
#include "megalith/ops/rows.h"

#include "apps/bench/bench_grouped.h"

namespace megalith::apps {

// Experts are chosen by random scores, so their numbers of rows are those of random choices.
void bench_rows(const OpsBench& o) {
  if (o.top_k > o.experts) throw ConfigError(str("--top-k = ", o.top_k, ": must be at most --experts = ", o.experts));
  const Index pairs = o.tokens * o.top_k;
  if (constexpr Index kMaxPairs = std::numeric_limits<std::int32_t>::max(); pairs > kMaxPairs)
    throw ConfigError(str("--tokens = ", o.tokens, ": --tokens * --top-k must be at most ", kMaxPairs,
                          "; with --top-k = ", o.top_k, " the most is ", kMaxPairs / o.top_k));
  OpsRunner bench(o);
  bench.measure_roofs();
  const DType wide = statistics_dtype(bench.dtype());
  const Tensor logits = bench.random({o.tokens, o.experts}, wide),
               probabilities = bench.empty({o.tokens, o.experts}, wide),
               experts = bench.empty({o.tokens, o.top_k}, DType::i32), weights = bench.empty({o.tokens, o.top_k}, wide),
               counts = bench.empty({1, o.experts}, DType::i64), row_of = bench.empty({o.tokens, o.top_k}, DType::i32),
               pair_of = bench.empty({pairs}, DType::i32);
  const ops::GroupRows groups{.begin = bench.empty({o.experts}, DType::i32),
                              .rows = bench.empty({o.experts}, DType::i32)};
  const ops::RouterRules rules{.top_k = o.top_k};
  const double of_experts = static_cast<double>(logits.bytes());
  bench.measure("router", 0, 2 * of_experts, [&](Exec& e) {
    ops::router_forward(e, {.logits = logits,
                            .bias = {},
                            .probabilities = probabilities,
                            .experts = experts,
                            .weights = weights,
                            .counts = counts,
                            .rules = rules});
  });
  const Tensor d_logits = bench.empty({o.tokens, o.experts}, wide);
  bench.measure("router_backward", 0, 2 * of_experts, [&](Exec& e) {
    ops::router_backward(e, {.logits = logits,
                             .probabilities = probabilities,
                             .experts = experts,
                             .d_weights = weights,
                             .d_probabilities = {},
                             .d_logits = d_logits,
                             .rules = rules});
  });
  bench.measure("build_rows", 0, static_cast<double>(3 * experts.bytes()), [&](Exec& e) {
    ops::build_rows(e, {.experts = experts, .groups = groups, .row_of = row_of, .pair_of = pair_of});
  });
  const Tensor x = bench.random({o.tokens, o.hidden}), rows = bench.empty({pairs, o.hidden}),
               y = bench.empty({o.tokens, o.hidden});
  const double moved = static_cast<double>(x.bytes()) + static_cast<double>(rows.bytes());
  bench.measure("permute_rows", 0, moved, [&](Exec& e) {
    ops::permute_rows(e, {.x = x, .pair_of = pair_of, .row_of = row_of, .rows = rows, .top_k = o.top_k});
  });
  const auto sum = [&](const char* name, const Tensor& by) {
    bench.measure(name, 0, moved,
                  [&](Exec& e) { ops::sum_rows(e, {.rows = rows, .row_of = row_of, .weights = by, .y = y}); });
  };
  sum("sum_rows, weighted", weights);
  sum("sum_rows", {});
  bench.print();
}

}  // namespace megalith::apps
