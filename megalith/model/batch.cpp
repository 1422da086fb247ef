#include "megalith/model/batch.h"

#include <algorithm>

#include "megalith/model/model_config.h"

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
    case InputShape::per_sequence:
      return samples * sequences;
    case InputShape::per_token:
      return tokens();
    case InputShape::per_target:
      return samples * sequences * (masked > 0 ? masked : seq_len);
    case InputShape::per_row:
      return samples * sequences * (masked + (first_tokens == FirstTokens::read ? 1 : 0));
    case InputShape::per_label:
      return samples * labels;
  }
  return 0;
}

BatchShape batch_shape(const ModelConfig& model, Index samples, Index seq_len) {
  BatchShape shape{.samples = samples, .seq_len = seq_len, .lengths = model.lengths, .documents = model.documents};
  if (!model.is_bert()) return shape;
  shape.types = model.token_types;
  if (model.task) {
    shape.sequences = model.task->sequences();
    shape.has_targets = false;
    shape.labels = model.task->labels();
    if (model.task->form != nn::TaskForm::spans) shape.first_tokens = FirstTokens::read;
    return shape;
  }
  shape.masked = model.bert.max_masked();
  if (!model.bert.is_pair()) return shape;
  shape.labels = 1;
  shape.first_tokens = FirstTokens::read;
  return shape;
}

void fill_rows(std::span<const std::int32_t> places, const Batch& batch) {
  const std::size_t sequences = batch.lengths.size(), seq_len = batch.row_of.size() / sequences,
                    masked = places.size() / sequences;
  std::ranges::fill(batch.row_of, -1);
  const auto put = [&](std::size_t row, std::size_t sequence, std::int32_t place) {
    batch.rows[row] = -1;
    if (place < 0) return;
    const std::size_t token = sequence * seq_len + static_cast<std::size_t>(place);
    batch.rows[row] = static_cast<std::int32_t>(token);
    batch.row_of[token] = static_cast<std::int32_t>(row);
  };
  for (std::size_t i = 0; i < places.size(); ++i) put(i, i / masked, places[i]);
  for (std::size_t i = places.size(); i < batch.rows.size(); ++i) put(i, i - places.size(), 0);
}

void count_losses(const Batch& batch, LossCounts& counts) {
  std::size_t loss = 0;
  for (const BatchInput& input : kBatchInputs) {
    const std::span<std::int32_t> targets = batch.*input.host;
    if (input.losses == 0 || targets.empty()) continue;
    const Index terms = std::ssize(targets) - std::ranges::count(targets, kNoTarget);
    for (const std::size_t end = loss + input.losses; loss < end; ++loss) counts[loss] += terms;
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
