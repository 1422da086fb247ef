#include "megalith/model/batch.h"

#include <algorithm>

namespace megalith::model {
namespace {

std::byte* at(const Tensor& block, Index offset) {
  return block.raw() == nullptr ? nullptr : static_cast<std::byte*>(block.raw()) + offset;
}

}  // namespace

Index count_targets(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target != kNoTarget; });
}

Batch BatchLayout::on_host(std::span<std::byte> block) const {
  Batch batch;
  for (std::size_t i = 0; i < kBatchInputs.size(); ++i)
    batch.*kBatchInputs[i].host = Tensor(block.data() + offset(i), {tokens_}, DType::i32).span<std::int32_t>();
  return batch;
}

BatchTensors BatchLayout::inputs_of(const Tensor& block) const {
  BatchTensors inputs;
  for (std::size_t i = 0; i < kBatchInputs.size(); ++i)
    inputs.*kBatchInputs[i].device = Tensor(at(block, offset(i)), {tokens_}, DType::i32);
  return inputs;
}

Tensor BatchLayout::state_of(const Tensor& block) { return {at(block, 0), {state_bytes()}, DType::u8}; }

}  // namespace megalith::model
