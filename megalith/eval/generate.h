#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/eval/whole_model.h"

namespace megalith::eval {

struct GenerateOptions {
  Index max_tokens = 100;
  double temperature = 1.0;      ///< 0: greedy, ties to the lower id
  Index top_k = 0;               ///< draw among the k likeliest only; 0: among all
  double top_p = 1.0;            ///< draw among the fewest likeliest whose probabilities reach p, in (0, 1]
  std::uint64_t seed = 0;        ///< the n-th token is a function of (seed, n) and the logits
  std::int32_t stop_token = -1;  ///< ends the text when drawn; -1: none
};

/// The id drawn from softmax(logits / temperature), cut to top_k and then to top_p. `uniform` in [0, 1).
std::int32_t draw(std::span<const double> logits, const GenerateOptions& options, double uniform);

/// Continues `prompt` and calls `token` for each id; stops early when it returns false. The window slides when the text
/// outgrows seq_len. Throws InputError for an empty prompt or ids outside the vocabulary.
void generate(WholeModel& model, std::vector<std::int32_t> prompt, const GenerateOptions& options,
              const std::function<bool(std::int32_t)>& token);

}  // namespace megalith::eval
