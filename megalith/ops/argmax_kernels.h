#pragma once
#include "megalith/ops/argmax.h"

namespace megalith::ops {

// logits: (T, V/tp) : (V/tp, 1).  best: (T, 2) : (2, 1), of all shards (shards, T, 2) : (2 T, 2, 1).
// ids, targets: (T) : (1).  sum: (1).

namespace cpu {
void argmax(const Argmax& args);
void argmax_of_shards(const ArgmaxOfShards& args);
void count_matches(const CountMatches& args);
}  // namespace cpu

namespace cuda {
void argmax(Stream stream, const Argmax& args);
void argmax_of_shards(Stream stream, const ArgmaxOfShards& args);
void count_matches(Stream stream, const CountMatches& args);
}  // namespace cuda

}  // namespace megalith::ops
