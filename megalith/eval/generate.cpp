#include "megalith/eval/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"

namespace megalith::eval {

std::int32_t draw(std::span<const double> logits, const GenerateOptions& options, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  const auto weight = [&](std::int32_t id) {
    return std::exp((logits[static_cast<std::size_t>(id)] - *best) / options.temperature);
  };
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto all = static_cast<Index>(ids.size());
  if (options.top_k > 0 || options.top_p < 1) {
    const auto likelier = [&](std::int32_t a, std::int32_t b) {
      const double za = logits[static_cast<std::size_t>(a)], zb = logits[static_cast<std::size_t>(b)];
      return za != zb ? za > zb : a < b;
    };
    const Index kept = options.top_k > 0 ? std::min(options.top_k, all) : all;
    std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), likelier);
    ids.resize(static_cast<std::size_t>(kept));
  }
  double sum = 0;
  for (const std::int32_t id : ids) sum += weight(id);
  if (options.top_p < 1) {
    double reached = 0;
    std::size_t count = 0;
    while (count < ids.size() && (count == 0 || reached < options.top_p * sum)) reached += weight(ids[count++]);
    ids.resize(count);
    sum = reached;
  }
  double left = uniform * sum;
  for (const std::int32_t id : ids) {
    left -= weight(id);
    if (left < 0) return id;
  }
  return ids.back();
}

void generate(WholeModel& model, std::vector<std::int32_t> prompt, const GenerateOptions& options,
              const std::function<bool(std::int32_t)>& token) {
  if (prompt.empty()) throw InputError("prompt = \"\": must hold at least one token");
  const RandomSite random{.seed = options.seed, .site = 1};
  for (Index n = 0; n < options.max_tokens; ++n) {
    const std::size_t length = std::min(prompt.size(), static_cast<std::size_t>(model.config().seq_len));
    const std::span<const double> z = model.last_logits(std::span(prompt).last(length));
    const double uniform = static_cast<double>(random.word(static_cast<std::uint64_t>(n))) * 0x1p-32;
    const std::int32_t id = draw(z, options, uniform);
    if (id == options.stop_token || !token(id)) return;
    prompt.push_back(id);
  }
}

}  // namespace megalith::eval
