#include "megalith/report/echo_loads.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

/// That of router logits before training: weights of deviation 0.02 on 2048 normed features.
const double kLogitDeviation = 0.02 * std::sqrt(2048.0);

/// "[FILE] line 1, column 42, " for a member of the first line; its first column if there is none.
std::string place_in_header(io::Fs& fs, const std::string& file, const std::string& member) {
  const io::MappedFile map = fs.map(file);
  const std::string_view text = map.text();
  const std::size_t found = text.substr(0, text.find('\n')).find(' ' + member + ' ');
  return str("[", file, "] line 1, column ", found == std::string_view::npos ? 1 : found + 2, ", ");
}

}  // namespace

EchoCounts skewed_counts(const SkewedRouter& router, Index ranks, Index experts) {
  EchoCounts of{.ranks = ranks, .experts = experts, .counts = Counts(static_cast<std::size_t>(ranks * experts), 0)};
  const RandomSite site{.seed = 1, .step = 0, .site = 1};
  std::vector<double> bias(static_cast<std::size_t>(experts)), logits(bias.size());
  for (std::size_t e = 0; e < bias.size(); ++e) bias[e] = router.skew * std::log1p(static_cast<double>(e));
  std::vector<Index> order(bias.size());
  for (Index token = 0; token < ranks * router.tokens; ++token) {
    for (std::size_t e = 0; e < bias.size(); ++e)
      logits[e] = kLogitDeviation * site.normal(static_cast<std::uint64_t>(token * experts) + e) - bias[e];
    std::iota(order.begin(), order.end(), 0);
    const auto by_logit = [&](Index a, Index b) {
      const double left = logits[static_cast<std::size_t>(a)], right = logits[static_cast<std::size_t>(b)];
      return left != right ? left > right : a < b;
    };
    std::nth_element(order.begin(), order.begin() + router.top_k - 1, order.end(), by_logit);
    for (Index k = 0; k < router.top_k; ++k)
      ++of.counts[static_cast<std::size_t>(token / router.tokens * experts + order[static_cast<std::size_t>(k)])];
  }
  return of;
}

EchoTrace::EchoTrace(io::Fs& fs, const std::string& file, const EchoGrid& grid, const EchoSamples& samples)
    : trace_(std::make_unique<train::RouterTraceFile>(fs, file, "--router-trace", file)),
      ranks_(grid.ranks),
      samples_(samples) {
  const train::RouterTraceShape& of = shape();
  if (grid.experts != 0 && grid.experts != of.experts)
    throw InputError(str(place_in_header(fs, file, "experts"), "experts = ", of.experts, ": must be ", grid.experts,
                         ", by --experts"));
  require_echo_grid(ranks_, of.experts, place_in_header(fs, file, "experts"));
  const Index of_all = samples.dp * rank_tokens();
  if (of_all < 1 || of.tokens % of_all != 0)
    throw InputError(str(place_in_header(fs, file, "tokens"), "tokens = ", of.tokens, ": must be a multiple of ",
                         of_all, " = --dp ", samples.dp, " x --micro-batch ", samples.micro_batch, " x seq_len ",
                         of.seq_len));
  const Index pairs = ranks_ * rank_tokens() * of.top_k;
  if (pairs > std::numeric_limits<std::int32_t>::max())
    throw InputError(str(place_in_header(fs, file, "top_k"), "pairs of a microbatch = ", pairs,
                         ": must be below 2^31; choose a smaller --micro-batch"));
  if (trace_->steps() < 1)
    throw InputError(str(place_in_header(fs, file, "first_step"), "there is no step: must be at least one"));
  const Index with_experts = std::count(of.pattern.begin(), of.pattern.end(), 'm');
  if (with_experts != of.layers)
    throw InputError(str(place_in_header(fs, file, "pattern"), "pattern has ", with_experts,
                         " layers with experts: must have ", of.layers, ", as many as `layers`"));
}

Index EchoTrace::moe_layer(Index layer) const {
  const std::string& pattern = shape().pattern;
  if (layer < 0 || layer >= std::ssize(pattern) || pattern[static_cast<std::size_t>(layer)] != 'm') return -1;
  return std::count(pattern.begin(), pattern.begin() + layer, 'm');
}

Index EchoTrace::model_layer(Index moe_layer) const {
  const std::string& pattern = shape().pattern;
  std::size_t layer = pattern.find('m');
  for (Index i = 0; i < moe_layer; ++i) layer = pattern.find('m', layer + 1);
  return static_cast<Index>(layer);
}

EchoCounts EchoTrace::counts(Index step, Index moe_layer, Index microbatch) const {
  const train::RouterTraceShape& of = shape();
  EchoCounts counts{
      .ranks = ranks_, .experts = of.experts, .counts = Counts(static_cast<std::size_t>(ranks_ * of.experts), 0)};
  std::vector<std::int32_t> experts(static_cast<std::size_t>(rank_tokens() * of.top_k));
  const Index of_dp_rank = of.tokens / samples_.dp, each = of_dp_rank / rank_tokens();
  const Index first_rank = microbatch / each * ranks_, first_token = microbatch % each * rank_tokens();
  for (Index rank = 0; rank < ranks_; ++rank) {
    const Index first = (first_rank + rank) * of_dp_rank + first_token;
    trace_->read({.step = step - 1, .moe_layer = moe_layer, .first = first}, experts);
    for (const std::int32_t expert : experts)
      ++counts.counts[static_cast<std::size_t>(rank * of.experts + (expert < 0 ? ~expert : expert))];
  }
  return counts;
}

}  // namespace megalith::apps
