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

struct InferenceConfig {
  model::ModelConfig model = {};
  std::vector<Index> stage_layers = {};    ///< layers of every global stage; empty: equal shares
  int chunks = 1, group_size = 0;          ///< of the pipeline's schedule
  DType dtype = DType::f32;                ///< of parameters and activations
  GemmFormat gemms = GemmFormat::compute;  ///< e4m3: of GEMMs as `fp8` has them, with dtype bf16
  nn::Fp8Config fp8 = {};
  Device device = Device::cpu;
  Index batch = 1;  ///< samples per microbatch at most; fewer where there are fewer of a shape
  std::vector<AskedResult> results = {{nn::Result::losses}};
  bool requires_finite = true;  ///< else numbers that are not finite are delivered, and no NonFiniteError is thrown
};

/// One rank of a model for inference: values only, no gradients, moments or dropout, on any grid. Memory is planned for
/// the shapes of all samples before any is taken. Data-parallel ranks share out the samples, and the pipeline runs
/// its forward-only schedule.
class InferenceModel final : private pipeline::Stage {
 public:
  /// Takes no memory. `samples`: the shapes of all that infer() and score() will get, and about how many there are of
  /// each.
  InferenceModel(InferenceConfig config, comm::World& world, const comm::Mesh& mesh, const PassCounts& samples);

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
  /// As eval::copy_params(), of a model of the same grid.
  void copy_params(ParamSet& from);

  /// Called on rank 0: a sample's number, and its results.
  using TakeNumbers = std::function<void(Index sample, const SampleNumbers& numbers)>;
  /// Samples of the shapes that were planned, the same on all ranks. Returns when rank 0 has the results of all; `take`
  /// gets those of one round after another. Collective. Communicates per round the numbers of every last stage to rank
  /// 0, 8 bytes each, between host memories. Throws NonFiniteError for a result that is no number.
  void infer(const Samples& samples, const TakeNumbers& take);

  using Take = std::function<void(Index passage, PassageScore score)>;
  /// The same for passages, of which losses are asked.
  void score(std::span<const Passage> passages, const Take& take);

 private:
  /// The inputs and results of a microbatch.
  struct Block {
    model::BatchTensors inputs;
    nn::HeadResults results;
  };
  void set_step_state(Exec& ex, int chunk, int microbatch, int slot) override;
  void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) override;
  [[noreturn]] void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                             const pipeline::BackwardTurn& turn) override;
  [[noreturn]] void gather_params(Exec& ex, int chunk) override;
  [[noreturn]] void reduce_grads(Exec& ex) override;

  /// Samples of a microbatch.
  Index batch(const PassShape& shape) const { return batches_.at(shape); }
  int max_microbatches() const;
  RoundSize round_size(const PassShape& shape) const {
    return {.batch = batch(shape), .dp = mesh_.dp.size(), .microbatches = max_microbatches()};
  }
  pipeline::LoweredSchedule schedule(int microbatches) const;
  model::Pass pass(const PassShape& shape) const {
    return {.batch = batch(shape), .seq_len = shape.tokens, .scored = shape.rows};
  }
  /// The layout of a microbatch's inputs, in which `masked` counts the rows of requested results.
  model::BatchLayout layout(const PassShape& shape) const;
  bool has_results_of(nn::ResultOf of) const;
  bool is_owner() const { return mesh_.last_stage() && mesh_.tp_rank() == 0; }
  Index input_bytes(const PassShape& shape) const { return layout(shape).bytes(); }
  Index result_bytes(const PassShape& shape) const;
  nn::HeadResults results(Carver& outs, const PassShape& shape) const;
  /// The size of a round's blocks in device memory: all inputs, then all results, then the sum of losses.
  Index round_bytes() const;
  /// Without `round` tensors have no memory.
  Block block(std::byte* round, const PassShape& shape, int microbatch) const;
  void run_chunk(Exec& ex, int chunk, const PassShape& shape, const Block& block, const Tensor& input,
                 const Tensor& output, model::Chunk::Saved& saved) const;
  void plan(const PassShape& shape);
  void warm_up();

  void fill_block(const Round& round, const Samples& samples, int microbatch);
  void run(const Round& round, const Samples& samples);
  /// The numbers of the samples that a data-parallel rank has in a round, with their places in its blocks.
  struct Placed {
    Index sample = 0;
    int microbatch = 0;
    Index place = 0;
  };
  std::vector<Placed> placed(const Round& round, int dp_rank) const;
  /// How many numbers a result of a sample has.
  static Index numbers_of(const AskedResult& asked, const Samples& samples, Index sample);
  /// The results of this rank's samples, one sample after another.
  std::vector<double> own_numbers(const Round& round, const Samples& samples);
  void deliver(const Round& round, const Samples& samples, const TakeNumbers& take);

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
