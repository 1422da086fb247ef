#pragma once
#include "megalith/ops/capacity.h"

namespace megalith::ops {

// experts, weights, kept: (T, K) : (K, 1), of T / run runs: (runs, run, K) : (run K, K, 1).

namespace cpu {
void drop_pairs(const DropPairs& args);
}  // namespace cpu

namespace cuda {
void drop_pairs(Stream stream, const DropPairs& args);
}  // namespace cuda

}  // namespace megalith::ops
