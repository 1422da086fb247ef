#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megalith/grid/mesh.h"
#include "megalith/model/gpt_chunk.h"

namespace megalith::eval {

/// A GPT on one rank, for reading only: no gradients, no dropout. Memory is planned once for each kind of question. A
/// question costs one forward pass over seq_len tokens.
class WholeModel {
 public:
  /// The mesh must be of one rank. On a GPU: the one that the calling thread uses, in f32. Parameters start from zero.
  WholeModel(const model::ModelConfig& model, const grid::Mesh& mesh, DType dtype, Device device = Device::cpu);

  const model::ModelConfig& config() const { return model_; }
  /// They lie on the device.
  ParamBuffer& params() { return params_; }
  /// Calls read(slice, values) for each parameter, which fills the values, in host memory and without padding.
  void fill_params(const std::function<void(const TensorSlice&, const Tensor&)>& read);

  /// Logits [v] after the last of `window`, 1 to seq_len tokens; valid until the next question.
  std::span<const double> last_logits(std::span<const std::int32_t> window);
  /// ln p(window[i] | window[0], ..., window[i-1]) for i from 1: one fewer than there are tokens, 1 to seq_len of them.
  /// Takes T V elements of memory at the first question.
  std::vector<double> log_probabilities(std::span<const std::int32_t> window);

 private:
  /// A recorded pass and its memory.
  struct Pass {
    MemoryPlan plan;
    Buffer scratch;
  };
  enum class Question { last_logits, losses };

  /// Asks with what stands in the input buffers, or records where nothing runs.
  Tensor ask(Exec& ex, Question question, Index row, const model::GptChunk::Inputs& inputs);
  Tensor run(std::optional<Pass>& pass, Question question, Index row);
  void put_tokens(std::span<const std::int32_t> window);
  /// The first elements of a tensor of the device; waits for them.
  void read(const Tensor& from, std::span<double> to);

  model::ModelConfig model_;
  ParamBuffer params_;
  Exec ex_;
  MemoryLedger ledger_;
  std::unique_ptr<model::GptChunk> chunk_;
  model::GptChunk::Saved saved_;
  std::optional<Pass> logits_pass_, losses_pass_;
  Buffer inputs_;
  Tensor tokens_, targets_, loss_sum_;
  std::vector<std::int32_t> host_tokens_, host_targets_;  // what they hold
  std::vector<double> logits_;
};

}  // namespace megalith::eval
