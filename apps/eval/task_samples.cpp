#include "apps/eval/task_samples.h"

#include <algorithm>
#include <numeric>

namespace megalith::apps {

TaskSamples::TaskSamples(const tasks::TaskSet& set) : set_(set) {
  for (Index i = 0; i < set_.count(); ++i) {
    with_sample(i, [&](const tasks::TaskSample& sample) {
      lengths_.insert(lengths_.end(), sample.lengths.begin(), sample.lengths.end());
    });
  }
}

template <class Use>
void TaskSamples::with_sample(Index sample, const Use& use) const {
  const auto sequences = static_cast<std::size_t>(set_.sequences()), labels = static_cast<std::size_t>(set_.labels()),
             tokens = sequences * static_cast<std::size_t>(set_.config().seq_len);
  std::vector<std::int32_t> memory(2 * tokens + sequences + labels);
  const std::span<std::int32_t> all(memory);
  const tasks::TaskSample made{.tokens = all.first(tokens),
                               .types = all.subspan(tokens, tokens),
                               .lengths = all.subspan(2 * tokens, sequences),
                               .labels = all.last(labels)};
  set_.make(sample, made);
  use(made);
}

eval::PassShape TaskSamples::shape(Index sequence) const {
  return eval::pass_shape(tokens(sequence), rows(sequence), set_.config().seq_len);
}

void TaskSamples::fill(Index sequence, const eval::SampleInputs& to) const {
  with_sample(sequence / set_.sequences(), [&](const tasks::TaskSample& sample) {
    const auto begin = static_cast<std::size_t>(sequence % set_.sequences() * set_.config().seq_len),
               length = static_cast<std::size_t>(tokens(sequence));
    std::ranges::copy(sample.tokens.subspan(begin, length), to.tokens.begin());
    if (!to.types.empty()) std::ranges::copy(sample.types.subspan(begin, length), to.types.begin());
    to.length = static_cast<std::int32_t>(length);
  });
  const std::span<std::int32_t> asked = to.rows.first(static_cast<std::size_t>(rows(sequence)));
  std::iota(asked.begin(), asked.end(), 0);
}

std::vector<eval::AskedResult> TaskSamples::asked() const {
  if (has_spans()) return {{nn::Result::row_logits, 2}};
  return {{nn::Result::class_logits, set_.numbers() / set_.sequences()}};
}

void TaskSamples::put(Index sequence, const eval::SampleNumbers& found, std::span<float> all) const {
  if (!has_spans()) {
    const std::vector<double>& logits = found.of(nn::Result::class_logits);
    auto to = all.begin() + sequence * std::ssize(logits);
    for (const double logit : logits) *to++ = static_cast<float>(logit);
    return;
  }
  const std::vector<double>& logits = found.of(nn::Result::row_logits);
  const auto seq_len = static_cast<std::size_t>(set_.config().seq_len),
             begin = static_cast<std::size_t>(sequence) * 2 * seq_len;
  for (std::size_t token = 0; token < logits.size() / 2; ++token) {
    all[begin + token] = static_cast<float>(logits[2 * token]);
    all[begin + seq_len + token] = static_cast<float>(logits[2 * token + 1]);
  }
}

}  // namespace megalith::apps
