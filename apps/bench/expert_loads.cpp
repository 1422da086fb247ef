#include "apps/bench/expert_loads.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/ops/group_rows.h"

namespace megalith::apps {
namespace {

constexpr Index kMaxRows = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kZipf = "zipf:", kTrace = "trace:", kEven = "even";
constexpr Index kStepsOfABurst = 4;

/// S of zipf:S. Throws ConfigError.
double zipf_exponent(const std::string& text) {
  const char *const begin = text.data() + kZipf.size(), *const end = text.data() + text.size();
  double value = 0;
  const auto [last, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || last != end || !std::isfinite(value) || value < 0)
    throw ConfigError(str("--sizes = ", text, ": S of zipf:S must be a number from 0, such as zipf:1"));
  return value;
}

/// Throws InputError, which names the file and the line.
std::vector<Index> sizes_of_file(io::Fs& fs, const std::string& file) {
  io::require_file(fs, file, str("--sizes = ", file), "; must be even, zipf:S, or a file of sizes");
  const io::MappedFile map = fs.map(file);
  io::Reader reader(map.bytes(), file);
  std::vector<Index> sizes;
  while (const auto line = reader.next_line()) {
    std::string_view rest = *line;
    for (;;) {
      const std::size_t begin = rest.find_first_not_of(" \t");
      if (begin == std::string_view::npos) break;
      const std::size_t end = std::min(rest.find_first_of(" \t", begin), rest.size());
      const std::string_view word = rest.substr(begin, end - begin);
      Index size = 0;
      const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), size);
      if (error != std::errc() || last != word.data() + word.size() || size < 0 || size > kMaxRows)
        throw InputError(str("--sizes = ", file, ": line ", reader.line(), ", size = ", io::printable(word, 40),
                             ": must be a whole number from 0 to ", kMaxRows));
      sizes.push_back(size);
      rest.remove_prefix(end);
    }
  }
  return sizes;
}

void check_file_sizes(const std::string& file, const std::vector<Index>& sizes, Index rows, Index groups) {
  const Index sum = std::accumulate(sizes.begin(), sizes.end(), Index{0});
  const auto refuse = [&](const std::string& text) { throw InputError(str("--sizes = ", file, ": ", text)); };
  if (sizes.empty()) refuse("has no sizes: it must have one for each group");
  if (std::ssize(sizes) > ops::kMaxGroups)
    refuse(str("has ", sizes.size(), " sizes: must be at most ", ops::kMaxGroups));
  if (groups > 0 && std::ssize(sizes) != groups)
    refuse(str("has ", sizes.size(), " sizes: must be --groups = ", groups, "; leave --groups out"));
  if (sum < 1 || sum > kMaxRows) refuse(str("its sizes sum to ", sum, ": must be 1 to ", kMaxRows));
  if (rows > 0 && sum != rows) refuse(str("its sizes sum to ", sum, ": must be --rows = ", rows, "; leave --rows out"));
}

/// A stride with which (p stride) mod tokens visits every token before any comes again.
Index scatter_stride(Index tokens) {
  Index stride = std::max<Index>(1, static_cast<Index>(0.618 * static_cast<double>(tokens)));
  while (std::gcd(stride, tokens) != 1) ++stride;
  return stride;
}

}  // namespace

std::vector<Index> proportional_counts(Index total, std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Index> counts(weights.size(), 0);
  std::vector<std::size_t> order;  // of groups that get one more
  const auto share = [&](std::size_t g) { return static_cast<double>(total) * (weights[g] / sum); };
  for (std::size_t g = 0; g < weights.size(); ++g) {
    counts[g] = static_cast<Index>(share(g));
    if (weights[g] > 0) order.push_back(g);
  }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t g) { return share(g) - static_cast<double>(counts[g]); });
  Index left = total - std::accumulate(counts.begin(), counts.end(), Index{0});
  for (const std::size_t g : order) {
    if (left-- > 0) ++counts[g];
  }
  return counts;
}

std::vector<Index> group_sizes(io::Fs& fs, const std::string& text, Index rows, Index groups) {
  constexpr Index kRows = 4096, kGroups = 8;
  const bool is_zipf = text.starts_with(kZipf);
  if (text != kEven && !is_zipf) {
    std::vector<Index> sizes = sizes_of_file(fs, text);
    check_file_sizes(text, sizes, rows, groups);
    return sizes;
  }
  const double exponent = is_zipf ? zipf_exponent(text) : 0;
  std::vector<double> weights;
  for (Index g = 0; g < (groups > 0 ? groups : kGroups); ++g)
    weights.push_back(std::pow(1 + static_cast<double>(g), -exponent));
  return proportional_counts(rows > 0 ? rows : kRows, weights);
}

ExpertLoad::ExpertLoad(io::Fs& fs, const std::string& text, const LoadSizes& sizes) : sizes_(sizes) {
  constexpr std::string_view kNames[] = {kEven, "hot", "rank", "rotate", "burst"};
  if (!text.starts_with(kTrace)) {
    const auto* const found = std::ranges::find(kNames, text);
    if (found == std::end(kNames)) {
      const std::string_view near = nearest(text, kNames);
      throw ConfigError(str("--load = ", text, ": must be even, hot, rank, rotate, burst or trace:FILE",
                            near.empty() ? "" : str("; the nearest is ", near)));
    }
    kind_ = static_cast<Kind>(found - kNames);
    return;
  }
  kind_ = Kind::trace;
  io::require_file(fs, text.substr(kTrace.size()), str("--load = ", text),
                   "; `megalith train --router-trace FILE` writes one");
  trace_ = std::make_shared<train::RouterTraceFile>(fs, text.substr(kTrace.size()), "--load", text);
  const train::RouterTraceShape& of = trace_->shape();
  const auto require = [&](bool holds, std::string_view what, Index has, std::string_view option, Index wanted) {
    if (!holds) throw InputError(str("--load = ", text, ": has ", what, " ", has, ": must be ", option, " = ", wanted));
  };
  require(of.experts == sizes_.experts, "experts", of.experts, "--experts", sizes_.experts);
  require(of.top_k == sizes_.top_k, "top_k", of.top_k, "--top-k", sizes_.top_k);
  require(trace_->steps() > 0, "steps", trace_->steps(), "at least", 1);
  require(of.tokens >= sizes_.tokens * sizes_.ranks, "tokens a step", of.tokens, "at least --tokens * --ep",
          sizes_.tokens * sizes_.ranks);
}

ExpertLoad::Kind ExpertLoad::kind_of_step(Index step) const {
  if (kind_ != Kind::burst) return kind_;
  return step % kStepsOfABurst == kStepsOfABurst - 1 ? Kind::rank : Kind::even;
}

std::vector<Index> ExpertLoad::counts_of_rank(Index step) const {
  const Index experts = sizes_.experts, of_a_rank = experts / sizes_.ranks, total = sizes_.tokens * sizes_.top_k;
  const Kind kind = kind_of_step(step);
  Index first = 0, count = experts;  // the experts that come first
  if (kind == Kind::rank) count = of_a_rank;
  if (kind == Kind::hot || kind == Kind::rotate) count = 1;
  if (kind == Kind::rotate) first = (step % experts * of_a_rank + step % experts / sizes_.ranks) % experts;
  std::vector<double> preferred(static_cast<std::size_t>(experts), 0), others(preferred);
  for (Index e = 0; e < experts; ++e)
    (e >= first && e < first + count ? preferred : others)[static_cast<std::size_t>(e)] = 1;
  const Index taken = std::min(total, count * sizes_.tokens);
  std::vector<Index> counts = proportional_counts(taken, preferred);
  if (taken == total) return counts;
  const std::vector<Index> rest = proportional_counts(total - taken, others);
  std::ranges::transform(counts, rest, counts.begin(), std::plus{});
  return counts;
}

// The choices of each expert follow those of the one before, and go round the tokens. As an expert has at most as many
// as there are tokens, no token has it twice.
std::vector<std::int32_t> ExpertLoad::choices(Index step, Index rank) const {
  std::vector<std::int32_t> experts(static_cast<std::size_t>(sizes_.tokens * sizes_.top_k));
  if (kind_ == Kind::trace) {
    const Index of_file = trace_->first_step() + step % trace_->steps();
    trace_->read({.step = of_file, .moe_layer = 0, .first = rank * sizes_.tokens}, experts);
    for (std::int32_t& expert : experts) expert = std::max(expert, ~expert);  // also of dropped pairs
    return experts;
  }
  const std::vector<Index> counts = counts_of_rank(step);
  const Index stride = scatter_stride(sizes_.tokens);
  Index place = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    for (Index i = 0; i < counts[e]; ++i, ++place) {
      const Index token = place % sizes_.tokens * stride % sizes_.tokens;
      experts[static_cast<std::size_t>(token * sizes_.top_k + place / sizes_.tokens)] = static_cast<std::int32_t>(e);
    }
  }
  return experts;
}

std::vector<Index> ExpertLoad::counts(Index step) const {
  if (kind_ != Kind::trace) {
    std::vector<Index> counts = counts_of_rank(step);
    for (Index& count : counts) count *= sizes_.ranks;
    return counts;
  }
  std::vector<Index> counts(static_cast<std::size_t>(sizes_.experts), 0);
  for (Index rank = 0; rank < sizes_.ranks; ++rank) {
    for (const std::int32_t expert : choices(step, rank)) ++counts[static_cast<std::size_t>(expert)];
  }
  return counts;
}

}  // namespace megalith::apps
