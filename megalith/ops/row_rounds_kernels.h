#pragma once
#include "megalith/ops/row_rounds.h"

namespace megalith::ops {

// experts, of_round: (R, n, K) : (n K, K, 1) i32; of number_pairs, experts: (n, K) : (K, 1), row_of: (n, K P) : (K P,
// 1).  places: (J, 2) : (2, 1) i32; the lists of pulls as in row_exchange_kernels.h.

namespace cpu {
void choices_of_round(const ChoicesOfRound& args);
void number_pairs(const Tensor& experts, const Tensor& row_of);
void pull_places(const Tensor& places, const PullTables& pulls);
}  // namespace cpu

namespace cuda {
/// Experts outside [0, E) count as none.
void choices_of_round(Stream stream, const ChoicesOfRound& args);
void number_pairs(Stream stream, const Tensor& experts, const Tensor& row_of);
void pull_places(Stream stream, const Tensor& places, const PullTables& pulls);
}  // namespace cuda

}  // namespace megalith::ops
