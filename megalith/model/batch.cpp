#include "megalith/model/batch.h"

#include <algorithm>

#include "megalith/model/model_config.h"
#include "megalith/nn/order_head.h"

namespace megalith::model {
namespace {

std::byte* at(const Tensor& block, Index offset) {
  return block.raw() == nullptr ? nullptr : static_cast<std::byte*>(block.raw()) + offset;
}

/// Both StepStates lie before the first input.
constexpr Index kLabelState = sizeof(StepState);
static_assert(kLabelState + Index{sizeof(StepState)} <= kAlignment);

}  // namespace

Index BatchShape::elements(InputShape shape) const {
  switch (shape) {
    case InputShape::per_sample:
      return samples;
    case InputShape::per_token:
      return samples * seq_len;
    case InputShape::per_target:
      return samples * (masked > 0 ? masked : seq_len);
    case InputShape::per_row:
      return samples * (masked + (classes > 0 ? 1 : 0));
  }
  return 0;
}

BatchShape batch_shape(const ModelConfig& model, Index samples, Index seq_len) {
  BatchShape shape{.samples = samples, .seq_len = seq_len, .lengths = model.lengths};
  if (!model.is_bert()) return shape;
  shape.masked = model.bert.max_masked();
  shape.types = model.token_types;
  shape.classes = model.bert.is_pair() ? nn::OrderHead::kClasses : 0;
  return shape;
}

void fill_rows(std::span<const std::int32_t> places, const Batch& batch) {
  const std::size_t samples = batch.lengths.size(), seq_len = batch.row_of.size() / samples,
                    masked = places.size() / samples;
  std::ranges::fill(batch.row_of, -1);
  const auto put = [&](std::size_t row, std::size_t sample, std::int32_t place) {
    batch.rows[row] = -1;
    if (place < 0) return;
    const std::size_t token = sample * seq_len + static_cast<std::size_t>(place);
    batch.rows[row] = static_cast<std::int32_t>(token);
    batch.row_of[token] = static_cast<std::int32_t>(row);
  };
  for (std::size_t i = 0; i < places.size(); ++i) put(i, i / masked, places[i]);
  for (std::size_t i = places.size(); i < batch.rows.size(); ++i) put(i, i - places.size(), 0);
}

void count_losses(const Batch& batch, LossCounts& counts) {
  for (const BatchInput& input : kBatchInputs) {
    if (input.losses.first == input.losses.end) continue;
    const std::span<std::int32_t> targets = batch.*input.host;
    const Index terms = std::ssize(targets) - std::ranges::count(targets, kNoTarget);
    for (std::size_t loss = input.losses.first; loss < input.losses.end; ++loss) counts[loss] += terms;
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

Tensor BatchLayout::label_state_of(const Tensor& block) {
  return {at(block, kLabelState), {sizeof(StepState)}, DType::u8};
}

}  // namespace megalith::model
