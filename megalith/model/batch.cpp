#include "megalith/model/batch.h"

#include <algorithm>

namespace megalith::model {
namespace {

std::byte* at(const Tensor& block, Index offset) {
  return block.raw() == nullptr ? nullptr : static_cast<std::byte*>(block.raw()) + offset;
}

}  // namespace

void count_losses(const Batch& batch, LossCounts& counts) {
  for (const BatchInput& input : kBatchInputs) {
    if (input.loss < 0) continue;
    const std::span<std::int32_t> targets = batch.*input.host;
    counts[static_cast<std::size_t>(input.loss)] += std::ssize(targets) - std::ranges::count(targets, kNoTarget);
  }
}

BatchLayout::BatchLayout(const BatchShape& shape)
    : shape_(shape), bytes_(kAlignment), middle_bytes_(sizeof(StepState)) {
  for (std::size_t i = 0; i < kBatchInputs.size(); ++i) {
    const BatchInput& input = kBatchInputs[i];
    offsets_[i] = bytes_;
    if (!input.is_in(shape_)) continue;
    bytes_ += round_up(shape_.elements(input.shape) * size_of(input.dtype), kAlignment);
    if (input.needed_by == NeededBy::all_chunks) middle_bytes_ = bytes_;
  }
}

Batch BatchLayout::on_host(std::span<std::byte> block) const {
  Batch batch;
  for (std::size_t i = 0; i < kBatchInputs.size(); ++i) {
    const BatchInput& input = kBatchInputs[i];
    const Tensor values(block.data() + offsets_[i], {shape_.elements(input.shape)}, input.dtype);
    const bool lies_in_it = offsets_[i] + values.bytes() <= static_cast<Index>(block.size());
    if (input.is_in(shape_) && lies_in_it) batch.*input.host = values.span<std::int32_t>();
  }
  return batch;
}

BatchTensors BatchLayout::inputs_of(const Tensor& block) const {
  BatchTensors inputs;
  for (std::size_t i = 0; i < kBatchInputs.size(); ++i) {
    const BatchInput& input = kBatchInputs[i];
    if (input.is_in(shape_))
      inputs.*input.device = Tensor(at(block, offsets_[i]), {shape_.elements(input.shape)}, input.dtype);
  }
  return inputs;
}

Tensor BatchLayout::state_of(const Tensor& block) { return {at(block, 0), {sizeof(StepState)}, DType::u8}; }

}  // namespace megalith::model
