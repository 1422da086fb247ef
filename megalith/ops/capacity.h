#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Which pairs stay where an expert has too many: those of the first tokens, or those with the greatest weights.
enum class DropBy : std::uint8_t { position, probability };

/// Longest run of tokens on a GPU: a thread block keeps the weights of an expert's pairs in its shared memory.
inline constexpr Index kMaxCapacityRunOnGpu = 8192;

/// Keeps at most `capacity` pairs per expert in each run of `run` consecutive tokens. Runs lie whole in the tensor.
/// kept = experts, with -1 for dropped pairs. By probability the greatest weights stay, compared as weight_order()
/// rounds them. Among equal weights, those of the lower tokens stay. What is kept in a run follows from its own tokens
/// alone. So grids that leave runs whole do not change it.
struct DropPairs {
  Tensor experts;  // in   [T, K] i32, no expert twice in a token
  Tensor weights;  // in   [T, K] f32 (f64); read by probability alone, else it may be undefined
  Tensor kept;     // out  [T, K] i32, not experts
  Index num_experts = 0, capacity = 0, run = 0;
  DropBy by = DropBy::probability;
};
void drop_pairs(Exec& ex, const DropPairs& args);

}  // namespace megalith::ops
