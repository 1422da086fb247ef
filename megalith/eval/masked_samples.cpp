#include "megalith/eval/masked_samples.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace megalith::eval {
namespace {

constexpr Index kOrders = 2;

}  // namespace

Index MaskedSamples::rows(Index sample) const {
  const std::vector<std::int32_t>& targets = of(sample).targets;
  return std::ssize(targets) - std::ranges::count(targets, -1);
}

void MaskedSamples::fill(Index sample, const SampleInputs& to) const {
  const MaskedSample& from = of(sample);
  std::ranges::copy(from.ids, to.tokens.begin());
  if (!to.types.empty()) std::ranges::copy(from.types, to.types.begin());
  std::size_t row = 0;
  for (std::size_t i = 0; i < from.targets.size(); ++i) {
    if (from.targets[i] < 0) continue;
    to.rows[row] = static_cast<std::int32_t>(i);
    to.targets[row++] = from.targets[i];
  }
  to.length = static_cast<std::int32_t>(from.ids.size());
}

std::vector<AskedResult> masked_results(const data::BertSampleConfig& config) {
  std::vector<AskedResult> results = {{nn::Result::losses}};
  if (config.is_pair()) {
    results.push_back({nn::Result::label_losses});
    results.push_back({nn::Result::class_logits, kOrders});
  }
  return results;
}

std::array<double, 2> order_log_probabilities(const SampleNumbers& numbers) {
  const std::vector<double>& z = numbers.of(nn::Result::class_logits);
  const double most = std::max(z[0], z[1]), log_sum = most + std::log(std::exp(z[0] - most) + std::exp(z[1] - most));
  return {z[0] - log_sum, z[1] - log_sum};
}

HeldOutSamples::Room::Room(const data::BertSampleConfig& config) {
  const auto tokens = static_cast<std::size_t>(config.seq_len), rows = static_cast<std::size_t>(config.max_masked());
  ids.resize(2 * (tokens + rows));
  const std::span<std::int32_t> all(ids);
  sample = {.tokens = all.first(tokens),
            .types = all.subspan(tokens, tokens),
            .places = all.subspan(2 * tokens, rows),
            .targets = all.last(rows)};
}

HeldOutSamples::HeldOutSamples(data::BertSamples samples) : samples_(std::move(samples)) {
  Room room(config());
  for (Index i = 0; i < count(); ++i) {
    samples_.make(0, i, room.sample);
    const Index masked = std::ssize(room.sample.targets) - std::ranges::count(room.sample.targets, -1);
    known_.push_back({room.sample.length, static_cast<std::int32_t>(masked), room.sample.label});
  }
}

void HeldOutSamples::fill(Index sample, const SampleInputs& to) const {
  Room room(config());
  data::BertSample& made = room.sample;
  made.tokens = to.tokens;
  if (!to.types.empty()) made.types = to.types;
  made.places = to.rows;
  made.targets = to.targets;
  samples_.make(0, sample, made);
  to.length = made.length;
  to.label = made.label;
}

ExampleResult HeldOutSamples::result_of(Index sample, const SampleNumbers& numbers) const {
  ExampleResult result{.targets = rows(sample)};
  for (const double loss : numbers.of(nn::Result::losses)) result.log_probability -= loss;
  if (!config().is_pair()) return result;
  const std::vector<double>& logits = numbers.of(nn::Result::class_logits);
  result.order_log_probability = -numbers.of(nn::Result::label_losses).front();
  result.correct = (logits[1] > logits[0] ? 1 : 0) == of(sample).label;
  return result;
}

}  // namespace megalith::eval
