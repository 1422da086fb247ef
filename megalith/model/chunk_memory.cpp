#include "megalith/model/chunk_memory.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/model/expert_counts.h"
#include "megalith/model/layer_groups.h"
#include "megalith/ops/rope.h"

namespace megalith::model {
namespace {

constexpr const char* kRotationsOwner = "rotations";

/// The layers that a rank holds.
ModelSpec spec_of(const ModelConfig& model, const std::vector<ChunkRange>& ranges) {
  std::vector<grid::LayerRange> layers;
  for (const ChunkRange& range : ranges) layers.push_back(range.layers);
  return model_spec(model, layers);
}

ParamSet params_of(const ChunkMemoryConfig& config, const nn::LayerGroups& groups,
                   const ParamSet::PartitionOf& partition) {
  std::vector<ParamSpec> specs = declare_model(spec_of(config.model, config.ranges), config.ranges, groups);
  if (partition) return {std::move(specs), config.policy, partition};
  return {std::move(specs), config.policy, ParamContents::values};
}

Index group_alignment(const ChunkMemoryConfig& config, const nn::LayerGroups& groups) {
  if (!groups.experts) return 1;
  return expert_alignment(config.model, config.device, config.policy, config.chunk.fp8, groups.experts->etp().size());
}

}  // namespace

ChunkMemory::ChunkMemory(ChunkMemoryConfig config, const comm::Mesh& mesh, const ParamSet::PartitionOf& partition)
    : config_(std::move(config)),
      groups_(layer_groups(config_.tp, config_.model, mesh)),
      params_(params_of(config_, groups_, partition)) {
  const ModelSpec model = spec_of(config_.model, config_.ranges);
  config_.chunk.group_alignment = group_alignment(config_, groups_);
  for (const ChunkRange& range : config_.ranges) chunks_.emplace_back(model, range, groups_, params_, config_.chunk);
  if (!config_.model.has_rope()) return;
  Shape shape = config_.model.rope_table_shape();
  if (config_.positions > 0) shape.set(0, config_.positions);
  rope_table_ = Tensor(nullptr, shape, statistics_dtype(config_.policy.compute));
}

void ChunkMemory::plan(const Pass& pass, int chunk, const Ops& forward, const Ops& backward) {
  Recording recording;
  Exec ex(config_.device, recording);
  ex.set_determinism(config_.determinism);
  recording.begin_phase();
  forward(ex);
  if (backward) {
    recording.begin_phase();
    backward(ex);
  }
  plans_.insert_or_assign({pass, chunk}, make_plan(recording));
}

const MemoryPlan& ChunkMemory::plan_of(const Pass& pass, int chunk) const {
  const auto found = plans_.find({pass, chunk});
  if (found == plans_.end())
    throw InternalError(str("[ChunkMemory] a pass of ", pass.batch, " sequences of ", pass.seq_len,
                            " tokens through chunk ", chunk, ": was not planned"));
  return found->second;
}

nn::Microbatch ChunkMemory::microbatch(const Pass& pass) const {
  return {.batch = pass.batch,
          .seq_len = pass.seq_len,
          .step_state = {},
          .mode = pass.mode,
          .moe = &moe_,
          .exchange = pass.exchange,
          .rope_table = rope_table_,
          .past = pass.past};
}

Tensor ChunkMemory::message(const Pass& pass) const {
  return {nullptr, {groups_.tp.rows_outside(pass.tokens()), config_.model.hidden_size}, config_.policy.compute};
}

std::vector<Chunk::Saved> ChunkMemory::make_saved(int chunk, std::size_t count) const {
  std::vector<Chunk::Saved> sets;
  for (std::size_t i = 0; i < count; ++i) {
    sets.push_back(this->chunk(chunk).make_saved());
    sets.back().take_host_memory(config_.device);
  }
  return sets;
}

Index ChunkMemory::max_scratch(Index MemoryPlan::*bytes, const SavedBytes& saved) const {
  Index most = 0;
  for (const auto& [planned, plan] : plans_)
    most = std::max(most, bytes_before_scratch(planned.first, plan, saved) + plan.*bytes - saved.at_once);
  return most;
}

BytesByOwner ChunkMemory::bytes() const {
  BytesByOwner bytes = params_.bytes();
  if (rope_table_) bytes[kRotationsOwner] = rope_table_.bytes();
  return bytes;
}

void ChunkMemory::allocate(MemoryLedger& ledger, const SavedBytes& saved, Index scratch_bytes) {
  params_.allocate(ledger);
  saved_ = saved;
  const bool has_backward =
      std::ranges::any_of(plans_, [](const auto& planned) { return planned.second.phases.size() > 1; });
  work_ = has_backward ? ledger.take(kActivationsOwner, saved.at_once, kScratchOwner, scratch_bytes)
                       : ledger.take(kScratchOwner, scratch_bytes);
  if (!rope_table_) return;
  rope_memory_ = ledger.take(kRotationsOwner, rope_table_.bytes());
  rope_table_ = rope_memory_.view(rope_table_.shape(), rope_table_.dtype());
}

void ChunkMemory::fill_tables(Exec& ex) const {
  if (rope_table_) ops::rope_table(ex, config_.model.rope_frequencies(), rope_table_);
}

}  // namespace megalith::model
