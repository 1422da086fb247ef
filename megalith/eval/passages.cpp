#include "megalith/eval/passages.h"

#include <algorithm>

namespace megalith::eval {

void PassageSamples::fill(Index sample, const SampleInputs& to) const {
  // Attention is causal: zeros after the last token cannot change what comes before.
  const Passage& passage = this->passage(sample);
  std::ranges::copy(passage.ids.first(static_cast<std::size_t>(passage.inputs())), to.tokens.begin());
  for (Index i = 0; i < passage.targets(); ++i) {
    const auto row = static_cast<std::size_t>(i);
    to.rows[row] = static_cast<std::int32_t>(passage.first_target - 1 + i);
    to.targets[row] = passage.ids[static_cast<std::size_t>(passage.first_target + i)];
  }
  to.length = static_cast<std::int32_t>(passage.inputs());
}

PassageScore score_of(const SampleNumbers& numbers) {
  PassageScore score;
  for (const double loss : numbers.of(nn::Result::losses)) score.log_probabilities.push_back(-loss);
  for (const double id : numbers.of(nn::Result::best_ids)) score.best_ids.push_back(static_cast<std::int32_t>(id));
  return score;
}

}  // namespace megalith::eval
