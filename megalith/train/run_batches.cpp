#include "megalith/train/run_batches.h"

#include <algorithm>

namespace megalith::train {

void TrainBatches::fill(Index first_sample, Index, const model::Batch& batch) const {
  order_.fill(first_sample, batch.tokens, batch.targets);
}

void HeldOutBatches::fill(Index first_sample, Index, const model::Batch& batch) const {
  const Index left = std::max<Index>(0, set_.count() - first_sample) * set_.seq_len();
  const auto real = static_cast<std::size_t>(std::min(left, static_cast<Index>(batch.tokens.size())));
  if (real > 0) data::fill_batch(order_, set_, first_sample, batch.tokens.first(real), batch.targets.first(real));
  std::ranges::fill(batch.tokens.subspan(real), 0);
  std::ranges::fill(batch.targets.subspan(real), model::kNoTarget);
}

}  // namespace megalith::train
