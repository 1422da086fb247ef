#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/world.h"
#include "megalith/model/gpt_chunk.h"

namespace megalith::eval {

struct GenerateOptions {
  Index max_tokens = 100;
  double temperature = 1.0;      ///< 0: greedy, ties to the lower id
  std::uint64_t seed = 0;        ///< the n-th token is a function of (seed, n) and the logits
  std::int32_t stop_token = -1;  ///< ends the text when drawn; -1: none
};

/// A GPT on one rank, for text. Memory is planned once; a token costs one forward pass over the window.
class Generator {
 public:
  /// The mesh must be of one rank. Parameters start from zero: fill them through params().
  Generator(const model::ModelConfig& model, const grid::Mesh& mesh, DType dtype);

  ParamBuffer& params() { return params_; }
  /// Continues `prompt` and calls `token` for each id; stops early when it returns false. The window slides when the
  /// text outgrows seq_len. Throws InputError for an empty prompt or ids outside the vocabulary.
  void run(std::vector<std::int32_t> prompt, const GenerateOptions& options,
           const std::function<bool(std::int32_t)>& token);

 private:
  /// Logits [v] after the last of `window` (at most seq_len) tokens.
  std::span<const double> logits(std::span<const std::int32_t> window);

  model::ModelConfig model_;
  ParamBuffer params_;
  MemoryLedger ledger_{Device::cpu};
  std::unique_ptr<model::GptChunk> chunk_;
  model::GptChunk::Saved saved_;
  MemoryPlan plan_;
  Buffer scratch_, tokens_;
  Exec ex_;
  std::vector<double> logits_;
};

}  // namespace megalith::eval
