#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/train/agreeing_runs.h"

// Small models with experts on grids that the dense and the expert layers divide each in their own way.

namespace megalith::support {

/// A grid of both kinds of layers, and how it is used.
struct MoeGrid {
  int ranks = 1, tp = 1, pp = 1, ep = 1, etp = 1, chunks = 1;
  nn::SequenceParallel sequence_parallel = nn::SequenceParallel::off;
  Sharding sharding = Sharding::none;
  std::string name() const {
    return str("ranks", ranks, "_tp", tp, "_pp", pp, "_ep", ep, "_etp", etp, "_chunks", chunks,
               sequence_parallel == nn::SequenceParallel::on ? "_sequence_parallel" : "",
               sharding == Sharding::optimizer ? "_sharded" : "");
  }
};

/// Each grid as it is, with sequence parallelism where tp may use it, with two chunks where there are stages, and with
/// a distributed optimizer.
inline std::vector<MoeGrid> all_moe_grids() {
  constexpr MoeGrid kGrids[] = {
      {4, 1, 1, 2, 1}, {4, 1, 1, 4, 1}, {4, 2, 1, 2, 1}, {4, 2, 1, 2, 2}, {4, 2, 1, 1, 1}, {4, 2, 1, 1, 2},
      {4, 1, 1, 1, 2}, {8, 1, 2, 2, 1}, {8, 1, 2, 2, 2}, {8, 2, 2, 2, 1}, {8, 2, 2, 2, 2}, {16, 4, 2, 4, 1},
  };
  std::vector<MoeGrid> all;
  for (MoeGrid grid : kGrids) {
    for (const auto rows : {nn::SequenceParallel::off, nn::SequenceParallel::on}) {
      if (rows == nn::SequenceParallel::on && grid.tp == 1) continue;
      for (const int chunks : {1, 2}) {
        if (chunks > grid.pp) continue;
        for (const auto sharding : {Sharding::none, Sharding::optimizer}) {
          grid.sequence_parallel = rows;
          grid.chunks = chunks;
          grid.sharding = sharding;
          all.push_back(grid);
        }
      }
    }
  }
  return all;
}

/// Samples as of indented code: two thirds of a sample are one token, each sample's own. Without dropout its rows are
/// then equal but for rounding, as a token attends to equal values only (RoPE, no table of positions).
class IndentedBatches final : public HashedBatches {
 public:
  using HashedBatches::HashedBatches;
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    HashedBatches::fill(first_sample, count, batch);
    const std::size_t length = batch.tokens.size() / static_cast<std::size_t>(count), indent = length * 2 / 3;
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      const auto space = static_cast<std::int32_t>((first_sample + static_cast<Index>(i / length)) % 37);
      if (i % length < indent) batch.tokens[i] = space;
      if (i % length + 1 < indent) batch.targets[i] = space;
    }
  }
};

enum class MoeText : std::uint8_t { hashed, indented };

inline std::unique_ptr<model::BatchSource> batches_of(MoeText text, Index vocab) {
  if (text == MoeText::indented) return std::make_unique<IndentedBatches>(vocab);
  return std::make_unique<HashedBatches>(vocab);
}

/// What a model with experts is, and what is tried with it.
struct MoeModel {
  const char* name;
  void (*set)(config::RunConfig&);
  MoeText text = MoeText::hashed;
};
inline const std::vector<MoeModel>& moe_models() {
  static const std::vector<MoeModel> all = {
      {"Top1", [](config::RunConfig& c) { c.moe.top_k = 1; }},
      {"Top2", [](config::RunConfig&) {}},
      {"SharedWithGate",
       [](config::RunConfig& c) {
         c.moe.shared_ffn_hidden_size = 8;
         c.moe.shared_gate = true;
       }},
      {"SharedGelu",
       [](config::RunConfig& c) {
         c.model.family = "gpt2";
         c.optimizer.lr = 2e-3;
         c.moe.shared_ffn_hidden_size = 8;
       }},
      {"LossOfMicrobatches",
       [](config::RunConfig& c) {
         c.moe.aux_loss = 0.1;
         c.moe.z_loss = 0.01;
       }},
      {"LossOfSequences",
       [](config::RunConfig& c) {
         c.moe.aux_loss = 0.1;
         c.moe.aux_scope = "sequence";
         c.moe.z_loss = 0.01;
       }},
      {"GlobalLoss",
       [](config::RunConfig& c) {
         c.moe.aux_loss = 0.1;
         c.moe.aux_scope = "global";
         c.moe.z_loss = 0.01;
       }},
      {"SigmoidWithBias",
       [](config::RunConfig& c) {
         c.moe.score = "sigmoid";
         c.moe.normalize_top_k = true;
         c.moe.scale = 1.5;
         c.moe.expert_bias_rate = 0.01;
         c.moe.num_groups = 4;
         c.moe.group_top_k = 2;
       }},
      {"DenseAndExperts", [](config::RunConfig& c) { c.moe.pattern = "dm"; }},
      {"Drop",
       [](config::RunConfig& c) {
         c.moe.capacity = "drop";
         c.moe.capacity_factor = 1.0;
         c.moe.capacity_run = 2;
       }},
      {"Pad",
       [](config::RunConfig& c) {
         c.moe.capacity = "pad";
         c.moe.capacity_factor = 1.0;
         c.moe.capacity_run = 4;
         c.moe.drop_by = "position";
       }},
      {"DropIndentedText",
       [](config::RunConfig& c) {
         c.model.dropout = 0;
         c.moe.aux_scope = "sequence";
         c.moe.capacity = "drop";
         c.moe.capacity_factor = 1.0;
         c.moe.capacity_run = 8;
       },
       MoeText::indented},
  };
  return all;
}

inline config::RunConfig moe_config(const MoeGrid& grid, const MoeModel& model, const std::string& precision,
                                    Index steps = 20) {
  config::RunConfig c =
      small_config({.tp = grid.tp, .pp = grid.pp, .chunks = grid.chunks, .sharding = grid.sharding}, precision, steps);
  c.model.family = "llama";
  c.model.num_layers = 4;
  c.model.num_kv_heads = 4;
  c.model.head_dim = 6;
  c.model.seq_len = 16;
  c.model.dropout = 0.1;
  c.parallel.ranks = grid.ranks;
  c.parallel.ep = grid.ep;
  c.parallel.etp = grid.etp;
  c.parallel.sequence_parallel = grid.sequence_parallel == nn::SequenceParallel::on;
  c.train.global_batch = 16;
  c.train.micro_batch = 2;
  c.moe.num_experts = 8;
  c.moe.ffn_hidden_size = 12;
  model.set(c);
  if (c.model.family == "gpt2") c.model.num_kv_heads.reset(), c.model.head_dim.reset();
  return c;
}

/// Decisions of a whole run in memory, shared by rank threads.
class KeptDecisions final : public nn::RouterDecisions {
 public:
  KeptDecisions(const config::RunPlan& plan, Use use)
      : use_(use),
        layers_(plan.model.num_moe_layers()),
        tokens_(plan.train.global_batch * plan.model.seq_len),
        top_k_(plan.model.moe.top_k),
        all_(static_cast<std::size_t>(plan.train.steps * layers_ * tokens_ * top_k_), -1) {}
  void start_replay() { use_ = Use::replay; }
  const std::vector<std::int32_t>& all() const { return all_; }

 private:
  Use use() const override { return use_; }
  void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override {
    const auto kept = std::span(all_).subspan(
        static_cast<std::size_t>(((tokens.step * layers_ + tokens.moe_layer) * tokens_ + tokens.first) * top_k_),
        experts.size());
    if (use_ == Use::record)
      std::ranges::copy(experts, kept.begin());
    else
      std::ranges::copy(kept, experts.begin());
  }

  Use use_;
  Index layers_, tokens_, top_k_;
  std::vector<std::int32_t> all_;  // ranks write to places of their own
};

inline void run_moe(const config::RunPlan& plan, RunRecord& record, nn::RouterDecisions* decisions = nullptr,
                    MoeText text = MoeText::hashed) {
  const auto source = batches_of(text, plan.model.vocab_size);
  comm::run_ranks(plan.grid.world_size,
                  [&](comm::World& world) { train_rank(world, plan, *source, record, decisions); });
}

/// The same under recorded decisions.
inline void run_replayed(config::RunPlan plan, KeptDecisions decisions, RunRecord& record) {
  plan.model.moe.replay = "kept";
  decisions.start_replay();
  run_moe(plan, record, &decisions);
}

}  // namespace megalith::support
