#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/eval/fill_params.h"
#include "megalith/model/chunk.h"

namespace megalith::eval {

/// A GPT on one rank, for reading only: no gradients, no dropout. A question costs one forward pass over its window,
/// rounded up to kWindowStep tokens; memory is planned once for each kind of question and length of a pass.
class WholeModel {
 public:
  static constexpr Index kWindowStep = 32;  ///< so that few lengths are planned for

  /// The mesh must be of one rank. On a GPU: the one that the calling thread uses, in f32. Parameters start from zero.
  /// Throws IoError where a host has no memory for them.
  WholeModel(const model::ModelConfig& model, const comm::Mesh& mesh, DType dtype, Device device = Device::cpu);

  const model::ModelConfig& config() const { return model_; }
  /// They lie on the device.
  ParamSet& params() { return params_; }
  /// By owner, what was taken so far; scratch that was given back for more is counted.
  const BytesByOwner& taken_bytes() const { return ledger_.by_owner(); }
  /// Calls read(slice, values) for each parameter, which fills the values, in host memory and without padding.
  void fill_params(const ReadValues& read);

  /// Logits [v] after the last of `window`, 1 to seq_len tokens; valid until the next question.
  std::span<const double> last_logits(std::span<const std::int32_t> window);
  /// ln p(window[i] | window[0], ..., window[i-1]) for i from 1: one fewer than there are tokens, 1 to seq_len of them.
  /// Takes T V elements of memory, T the longest window so far, rounded up.
  std::vector<double> log_probabilities(std::span<const std::int32_t> window);

 private:
  enum class Question : std::uint8_t { last_logits, losses };

  /// Throws IoError where the model computes in host memory and so much of it is not free.
  void require_host_memory(std::string_view what, Index bytes) const;
  /// Once: of all positions.
  void make_rope_table(DType dtype);
  /// The tokens of the pass that answers about a window.
  Index pass_tokens(Index window) const;
  /// Asks with what stands in the input buffers, or records where nothing runs.
  Tensor ask(Exec& ex, Question question, Index row, const model::Chunk::Inputs& inputs);
  /// About the first tokens of the input buffers.
  Tensor run(Question question, Index window);
  const MemoryPlan& plan_for(Question question, const model::Chunk::Inputs& inputs);
  void put_tokens(std::span<const std::int32_t> window);
  /// The first elements of a tensor of the device; waits for them.
  void read(const Tensor& from, std::span<double> to);

  model::ModelConfig model_;
  ParamSet params_;
  Exec ex_;
  MemoryLedger ledger_;
  std::unique_ptr<model::Chunk> chunk_;
  model::Chunk::Saved saved_;
  std::map<std::pair<Question, Index>, MemoryPlan> plans_;  // by the tokens of the pass
  Buffer scratch_;                                          // of the largest so far
  Buffer inputs_, rope_memory_;
  Tensor rope_table_;  // where the model rotates q and k
  Tensor tokens_, targets_, loss_sum_;
  std::vector<std::int32_t> host_tokens_, host_targets_;  // what they hold
  std::vector<double> logits_;
};

}  // namespace megalith::eval
