#pragma once
#include <compare>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "megalith/model/chunk.h"
#include "megalith/nn/moe/moe_step.h"
#include "megalith/ops/grouped_matmul.h"

namespace megalith::model {

/// What passes of a rank's chunks have in common: passes of one kind have the same ops and the same memory.
struct Pass {
  nn::Mode mode = nn::Mode::evaluate;
  Index batch = 1, seq_len = 1;  ///< sequences, and tokens of each
  nn::Past past = nn::Past::none;
  Index scored = 0;  ///< rows of each sequence that an evaluation scores
  nn::RowExchange exchange = nn::RowExchange::at_once;
  auto operator<=>(const Pass&) const = default;

  Index tokens() const { return batch * seq_len; }
};

/// What passes keep for backward, of all microbatches in flight: passes whose experts get rows at once, and in rounds.
struct SavedBytes {
  Index at_once = 0, in_rounds = 0;
};

struct ChunkMemoryConfig {
  ModelConfig model;
  std::vector<ChunkRange> ranges;  ///< this rank's, by chunk
  nn::TensorParallel tp;
  ChunkConfig chunk = {};
  Policy policy = {};
  Device device = Device::cpu;
  Determinism determinism = Determinism::required;
  Index positions = 0;  ///< for which there are rotations; 0: model.seq_len
};

/// The chunks of a rank, with all that running them takes: parameters, groups, the table of rotations, what MoE layers
/// share, a memory plan for every kind of pass, and the memory of these plans. Training, evaluation and
/// generation differ in the passes that they plan. It is built without memory, so that bytes can be computed for any
/// rank of any grid.
class ChunkMemory {
 public:
  /// `partition`: parameters have gradients, and are shared out so over the ranks that hold the same. Without one they
  /// are values only.
  ChunkMemory(ChunkMemoryConfig config, const comm::Mesh& mesh, const ParamSet::PartitionOf& partition = {});
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  ParamSet& params() { return params_; }
  const ParamSet& params() const { return params_; }
  const nn::TensorParallel& tp() const { return groups_.tp; }
  /// Only models with experts have them.
  const nn::ExpertParallel& experts() const { return *groups_.experts; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  nn::MoeStep& moe() { return moe_; }
  const nn::MoeStep& moe() const { return moe_; }
  const Chunk& chunk(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }

  /// Makes the plan of a pass from its ops, which are recorded: a phase for forward, and one for backward if there is
  /// one.
  using Ops = std::function<void(Exec&)>;
  void plan(const Pass& pass, int chunk, const Ops& forward, const Ops& backward = {});
  /// Throws InternalError for a pass that was not planned.
  const MemoryPlan& plan_of(const Pass& pass, int chunk) const;

  /// What layers know of a pass. Its tensors have no memory before allocate().
  nn::Microbatch microbatch(const Pass& pass) const;
  /// What a pass sends between stages, [rows_outside(T), H], without memory.
  Tensor message(const Pass& pass) const;
  /// The message that a chunk reads, or the one that it writes; undefined at the ends of the model.
  Tensor input_of(int chunk, const Tensor& message) const { return range(chunk).embedding ? Tensor() : message; }
  Tensor output_of(int chunk, const Tensor& message) const { return range(chunk).head ? Tensor() : message; }
  /// Objects for `count` passes in flight of a chunk, with their host memory.
  std::vector<Chunk::Saved> make_saved(int chunk, std::size_t count) const;

  /// The scratch of all planned passes, if so many bytes of results lie before it. A pass without backward keeps
  /// nothing, so its scratch begins where these do. That of passes in rounds begins after what they keep.
  Index scratch_bytes(const SavedBytes& saved = {}) const { return max_scratch(&MemoryPlan::scratch_bytes, saved); }
  /// The part of it that tensors hold when they hold most.
  Index alive_bytes(const SavedBytes& saved = {}) const { return max_scratch(&MemoryPlan::alive_bytes, saved); }
  /// By owner: parameters and rotations. Scratch depends on saved_bytes.
  BytesByOwner bytes() const;
  /// Takes these, and in one piece scratch and before it, where passes have backward, their results (owner
  /// "activations").
  void allocate(MemoryLedger& ledger, const SavedBytes& saved, Index scratch_bytes);
  /// Once, after allocate(): what all passes read and none writes.
  void fill_tables(Exec& ex) const;
  /// Results, then scratch. Their contents matter only within a step or an evaluation.
  const Buffer& work() const { return work_; }
  std::byte* scratch() const { return work_.data() + saved_.at_once; }

  /// Runs a phase of a pass in its memory. `saved`: where the results lie that backward reads.
  template <class Body>
  void run(Exec& ex, const Pass& pass, int chunk, std::size_t phase, std::byte* saved, Body&& body) const {
    const MemoryPlan& plan = plan_of(pass, chunk);
    ex.begin(plan.phases[phase], saved, work_.data() + bytes_before_scratch(pass, plan, saved_));
    body();
    ex.end();
  }
  /// Runs passes() so that libraries load what any later pass needs: experts get equal shares, as parameters may be
  /// zeros, and grouped GEMMs run in every class of sizes.
  template <class Passes>
  void warm_up(Exec& ex, Passes&& passes) {
    const ops::AllGroupSizes all_sizes(ex);
    moe_.routing = nn::Routing::even;
    passes();
    moe_.routing = nn::Routing::by_score;
  }

 private:
  const ChunkRange& range(int chunk) const { return this->chunk(chunk).range(); }
  static Index bytes_before_scratch(const Pass& pass, const MemoryPlan& plan, const SavedBytes& saved) {
    if (plan.phases.size() == 1) return 0;
    return pass.exchange == nn::RowExchange::in_rounds ? saved.in_rounds : saved.at_once;
  }
  Index max_scratch(Index MemoryPlan::*bytes, const SavedBytes& saved) const;

  ChunkMemoryConfig config_;
  nn::LayerGroups groups_;
  ParamSet params_;
  std::vector<Chunk> chunks_;
  std::map<std::pair<Pass, int>, MemoryPlan> plans_;
  Buffer work_, rope_memory_;
  SavedBytes saved_;
  Tensor rope_table_;  ///< ops::rope_table; undefined where no layer rotates
  nn::MoeStep moe_;
};

}  // namespace megalith::model
