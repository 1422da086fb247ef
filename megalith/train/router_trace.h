#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/nn/moe/router_decisions.h"

namespace megalith::train {

/// What a file of router decisions is of. The file: a line with these members, then for each step the chosen experts
/// as u16 [layers, tokens, top_k], little-endian, of dropped pairs plus 2^15. It depends on no grid.
struct RouterTraceShape {
  Index layers = 0, experts = 0, top_k = 0, tokens = 0;  ///< MoE layers; tokens of a global batch
  Index seq_len = 0;
  std::string pattern;   ///< a letter for every layer of the model: d or m
  std::string capacity;  ///< "none", or "C:N": an expert takes C of each N tokens
  static RouterTraceShape of(const config::RunPlan& plan);
  Index step_values() const { return layers * tokens * top_k; }
  bool operator==(const RouterTraceShape&) const = default;
};

/// Throws ConfigError where --router-trace = FILE can not be written: no experts, or decisions that are replayed.
void require_router_trace(const config::RunPlan& plan, const std::string& file);

/// Records the decisions of all ranks of a run in FILE, which is there once the run has ended.
class RouterTraceWriter final : public nn::RouterDecisions {
 public:
  /// Rank 0 makes the file. Throws IoError.
  RouterTraceWriter(comm::World& world, io::Fs& fs, io::Path file, const RouterTraceShape& shape, Index first_step);
  Use use() const override { return Use::record; }
  void take(const nn::DecisionsPlace& place, std::span<std::int32_t> experts) override;
  /// After the passes of a step: an all-reduce of all decisions over the ranks, 4 bytes each. Collective.
  void end_step();
  /// The file gets its name.
  void publish();

 private:
  comm::World& world_;
  io::Fs& fs_;
  io::Path file_, unfinished_;
  RouterTraceShape shape_;
  std::vector<std::int32_t> step_;  // 1 + what the file holds; 0: not of this rank
  std::unique_ptr<io::OutputFile> out_;
};

/// Repeats the decisions of a file.
class RouterTraceReader final : public nn::RouterDecisions {
 public:
  /// Throws ConfigError for a file of another shape, or without steps [first_step, last_step); InputError for one that
  /// is cut. take() throws InputError for experts that there are not, and for a token's that are not distinct.
  RouterTraceReader(io::Fs& fs, const std::string& file, const RouterTraceShape& shape, Index first_step,
                    Index last_step);
  Use use() const override { return Use::replay; }
  void take(const nn::DecisionsPlace& place, std::span<std::int32_t> experts) override;

 private:
  io::MappedFile map_;
  RouterTraceShape shape_;
  Index first_step_ = 0;
  std::size_t begin_ = 0;  // of the first step, in bytes
};

}  // namespace megalith::train
