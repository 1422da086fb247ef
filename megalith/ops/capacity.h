#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Which of too many pairs stay: those of the first tokens, or those that weigh most.
enum class DropBy : std::uint8_t { position, probability };

/// Longest run of tokens on a GPU: a thread block keeps the weights of an expert's pairs in its shared memory.
inline constexpr Index kMaxCapacityRunOnGpu = 8192;

/// Leaves every expert `capacity` pairs of each run of `run` consecutive tokens, which lie whole in the tensor: kept =
/// experts, with -1 for the others. By probability the greatest weights stay, compared as weight_order() rounds them;
/// of equal ones those of the lower tokens. What is kept in a run follows from its own tokens, so that no grid that
/// leaves runs whole changes it.
struct DropPairs {
  Tensor experts;  // in   [T, K] i32, no expert twice in a token
  Tensor weights;  // in   [T, K] f32 (f64); read by probability alone, else it may be undefined
  Tensor kept;     // out  [T, K] i32, not experts
  Index num_experts = 0, capacity = 0, run = 0;
  DropBy by = DropBy::probability;
};
void drop_pairs(Exec& ex, const DropPairs& args);

}  // namespace megalith::ops
