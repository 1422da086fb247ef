// The inputs of a stage's microbatches, from a source to the slots.
#include <algorithm>
#include <cstring>
#include <utility>

#include "megalith/model/stage.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/step_end.h"

namespace megalith::model {

void Stage::load(Exec& ex, nn::Mode mode, const BatchSource& source, Index first_sample, const StepState& state,
                 const Tensor& optimizer_state) {
  mode_ = mode;
  source_ = &source;
  first_sample_ = first_sample;
  if (next_.is(source, first_sample)) std::swap(current_, next_);
  state_ = state;
  optimizer_state_ = optimizer_state;
  if (config_.input_uploads == InputUploads::one_by_one) return;
  LossCounts counts{};
  step_inputs_.load(ex, num_microbatches(config_, mesh_, batch()),
                    [&](int microbatch, std::span<std::byte> host) { fill_block(microbatch, host, counts); });
  loss_counts_ = mesh_.last_stage() ? counts : LossCounts{};
}

Index Stage::input_bytes_of(int chunk) const {
  const ChunkRange& range = memory_.chunk(chunk).range();
  return range.embedding || range.head ? layout_.bytes() : layout_.middle_bytes();
}

Index Stage::step_block_bytes() const {
  Index bytes = 0;
  for (int chunk = 0; chunk < config_.chunks; ++chunk)
    bytes = std::max(bytes, round_up(input_bytes_of(chunk), kAlignment));
  return bytes;
}

Index Stage::first_sample_of(int microbatch, Index global_batch) const {
  return mesh_.dp_rank() * (global_batch / mesh_.dp.size()) + microbatch * config_.micro_batch;
}

void Stage::fill_block(int microbatch, std::span<std::byte> host, LossCounts& counts) const {
  const std::span<const std::byte> read =
      current_.is(*source_, first_sample_) ? block_of(current_, microbatch) : std::span<const std::byte>{};
  if (read.empty())
    fill_inputs(*source_, first_sample_, batch(), microbatch, host);
  else
    std::ranges::copy(read.first(host.size()), host.begin());
  StepState state = state_;
  state.first_sample = static_cast<std::uint64_t>(first_sample_of(microbatch, batch()) * sequences());
  std::memcpy(host.data(), &state, sizeof(state));
  if (config_.model.is_masked_lm()) {
    state.loss_scale = 1.0 / static_cast<double>(batch());
    std::memcpy(BatchLayout::label_state_of({host.data(), {std::ssize(host)}, DType::u8}).raw(), &state, sizeof(state));
  }
  count_losses(layout_.on_host(host), counts);
}

void Stage::fill_inputs(const BatchSource& source, Index first_sample, Index global_batch, int microbatch,
                        std::span<std::byte> host) const {
  const Batch batch = layout_.on_host(host);
  const bool reads =
      std::ranges::any_of(kBatchInputs, [&](const BatchInput& input) { return !(batch.*input.host).empty(); });
  if (reads) source.fill(first_sample + first_sample_of(microbatch, global_batch), config_.micro_batch, batch);
}

std::span<const std::byte> Stage::block_of(const ReadBatch& read, int microbatch) const {
  if (read.blocks.empty()) return {};
  const auto bytes = static_cast<std::size_t>(layout_.bytes());
  return std::span(read.blocks).subspan(static_cast<std::size_t>(microbatch) * bytes, bytes);
}

bool Stage::has_read(const BatchSource& source, Index first_sample) const {
  return current_.is(source, first_sample) || next_.is(source, first_sample);
}

LossCounts Stage::read_ahead(const BatchSource& source, Index first_sample, Index global_batch) {
  if (current_.is(source, first_sample)) return current_.counts;
  if (next_.is(source, first_sample)) return next_.counts;
  next_.source = &source;
  next_.first_sample = first_sample;
  next_.counts = {};
  if (!counts_terms()) return {};
  const int microbatches = num_microbatches(config_, mesh_, global_batch);
  const auto bytes = static_cast<std::size_t>(layout_.bytes());
  next_.blocks.resize(static_cast<std::size_t>(microbatches) * bytes);
  for (int i = 0; i < microbatches; ++i) {
    const std::span<std::byte> block = std::span(next_.blocks).subspan(static_cast<std::size_t>(i) * bytes, bytes);
    fill_inputs(source, first_sample, global_batch, i, block);
    count_losses(layout_.on_host(block), next_.counts);
  }
  return next_.counts;
}

void Stage::set_step_state(Exec& ex, int chunk, int microbatch, int slot_index) {
  ActivationSlot& place = slot(chunk, slot_index);
  place.chunk = chunk;
  place.microbatch = microbatch;
  const Index bytes = input_bytes_of(chunk);
  if (config_.input_uploads == InputUploads::whole_step) {
    ops::copy(ex, step_inputs_.block(microbatch).rows(0, bytes), place.block.rows(0, bytes));
  } else {
    ex.run({.name = "set_step_state",
            .reads = {},
            .writes = {place.batch.lengths, place.batch.document_begin, place.batch.positions, place.batch.tokens,
                       place.batch.targets, place.batch.types, place.batch.rows, place.batch.row_of, place.batch.labels,
                       place.label_state, place.step_state}},
           [&](Exec&, Stream) {
             staging_.upload(ex, static_cast<std::byte*>(place.step_state.raw()), bytes, [&](std::byte* host) {
               LossCounts elsewhere{};
               LossCounts& counts = memory_.chunk(chunk).range().head ? loss_counts_ : elsewhere;
               fill_block(microbatch, {host, static_cast<std::size_t>(bytes)}, counts);
             });
           });
  }
  if (mode_ == nn::Mode::evaluate) return;
  ops::scale_step_state(ex, optimizer_state_, place.step_state);
  if (config_.model.is_masked_lm())
    ops::scale_step_state(ex, optimizer_state_, place.label_state, ops::ScaledLoss::other);
}

}  // namespace megalith::model
