#pragma once
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/eval/fill_params.h"
#include "megalith/eval/passages.h"
#include "megalith/model/chunk_memory.h"
#include "megalith/pipeline/executor.h"

namespace megalith::eval {

/// Whether the likeliest id at every target is asked for.
enum class BestIds : std::uint8_t { not_asked, asked };

struct InferenceConfig {
  model::ModelConfig model = {};
  std::vector<Index> stage_layers = {};  ///< layers of every global stage; empty: equal shares
  int chunks = 1, group_size = 0;        ///< of the pipeline's schedule
  DType dtype = DType::f32;              ///< of parameters and activations
  Device device = Device::cpu;
  Index batch = 1;  ///< passages per microbatch at most; fewer where there are fewer of a shape
  BestIds best_ids = BestIds::not_asked;
};

/// The scores of a passage, target by target.
struct PassageScore {
  std::vector<double> log_probabilities;  ///< natural logarithms
  std::vector<std::int32_t> best_ids;     ///< the likeliest ids, ties to the lower one; empty unless asked for
};

/// One rank of a model for inference: values only, no gradients, moments or dropout, on any grid. Memory is planned for
/// the shapes of all passages before any is taken. Data-parallel ranks share out the passages, and the pipeline runs
/// its forward-only schedule.
class InferenceModel final : private pipeline::Stage {
 public:
  /// Takes no memory. `passages`: the shapes of all that score() will get, and about how many there are of each.
  InferenceModel(InferenceConfig config, comm::World& world, const comm::Mesh& mesh, const PassCounts& passages);

  const InferenceConfig& config() const { return config_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const ParamSet& params() const { return memory_.params(); }
  /// By owner: what allocate() takes: "parameters", "scratch", "inputs", and where there are any "rotations", "pipeline
  /// buffers", "library workspace".
  BytesByOwner planned_bytes() const;
  /// Takes that memory, which the caller has compared with what there is. Parameters start from zero. On a GPU it also
  /// runs every pass once, so that libraries load all that they need. Collective.
  void allocate();
  const BytesByOwner& taken_bytes() const { return ledger_.by_owner(); }

  /// As eval::fill_params(). Call it after allocate().
  void fill_params(DType stored, const ReadValues& read);

  /// Called on rank 0: a passage's number, and what is known of it.
  using Take = std::function<void(Index passage, PassageScore score)>;
  /// Passages of the shapes that were planned, the same on all ranks. Returns when rank 0 has all scores; `take` gets
  /// those of one round after another. Collective. Communicates per round the scores of every last stage to rank 0,
  /// between host memories. Throws NonFiniteError for a probability that is no number.
  void score(std::span<const Passage> passages, const Take& take);

 private:
  /// The inputs and results of a microbatch.
  struct Block {
    Tensor tokens;         ///< [batch * tokens] i32
    Tensor targets, rows;  ///< [batch * rows] i32
    Tensor losses;         ///< [batch * rows] f64 or f32
    Tensor best_ids;       ///< [batch * rows] i32; undefined unless asked for
  };
  void set_step_state(Exec& ex, int chunk, int microbatch, int slot) override;
  void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) override;
  [[noreturn]] void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                             const pipeline::BackwardTurn& turn) override;
  [[noreturn]] void gather_params(Exec& ex, int chunk) override;
  [[noreturn]] void reduce_grads(Exec& ex) override;

  /// Passages of a microbatch.
  Index batch(const PassShape& shape) const { return batches_.at(shape); }
  int max_microbatches() const;
  RoundSize round_size(const PassShape& shape) const {
    return {.batch = batch(shape), .dp = mesh_.dp.size(), .microbatches = max_microbatches()};
  }
  pipeline::LoweredSchedule schedule(int microbatches) const;
  model::Pass pass(const PassShape& shape) const {
    return {.batch = batch(shape), .seq_len = shape.tokens, .scored = shape.rows};
  }
  bool is_owner() const { return mesh_.last_stage() && mesh_.tp_rank() == 0; }
  Index input_bytes(const PassShape& shape) const;
  Index result_bytes(const PassShape& shape) const;
  /// The size of a round's blocks in device memory: all inputs, then all results, then the sum of losses.
  Index round_bytes() const;
  /// Without `round` tensors have no memory.
  Block block(std::byte* round, const PassShape& shape, int microbatch) const;
  void run_chunk(Exec& ex, int chunk, const PassShape& shape, const Block& block, const Tensor& input,
                 const Tensor& output, model::Chunk::Saved& saved) const;
  void plan(const PassShape& shape);
  void warm_up();

  void fill_block(const Round& round, std::span<const Passage> passages, int microbatch);
  void run(const Round& round, std::span<const Passage> passages);
  /// The numbers of the passages that a data-parallel rank has in a round, with their places in its blocks.
  struct Placed {
    Index passage = 0;
    int microbatch = 0;
    Index sample = 0;
  };
  std::vector<Placed> placed(const Round& round, int dp_rank) const;
  /// The scores of this rank's passages, one after another: the loss of every target, then the likeliest ids if asked
  /// for.
  std::vector<double> own_scores(const Round& round, std::span<const Passage> passages);
  void deliver(const Round& round, std::span<const Passage> passages, const Take& take);

  InferenceConfig config_;
  comm::World& world_;
  comm::Mesh mesh_;
  model::ChunkMemory memory_;
  std::vector<model::Chunk::Saved> saved_;  ///< by chunk
  std::map<PassShape, Index> batches_;
  std::optional<pipeline::Executor> executor_;
  std::vector<int> owners_;  ///< by data-parallel rank: the world rank that has the losses

  std::optional<Exec> ex_;
  MemoryLedger ledger_;
  Buffer round_, host_round_;
  Tensor loss_sums_ = Tensor(nullptr, {1}, DType::f64);
  PassShape running_;                     ///< the shape of the round
  std::vector<std::vector<int>> served_;  ///< by chunk and slot: the microbatch
};

}  // namespace megalith::eval
