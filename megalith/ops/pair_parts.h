#pragma once
#include <algorithm>

#include "megalith/tensor/tensor.h"

namespace megalith::ops::cuda {

/// How a GPU cuts the choices [R, n, K] of R ranks, so that it can number the pairs of token and expert of each (rank,
/// expert): each rank's pairs in parts, of which a warp goes through one. So parts are short. Scratch grows with their
/// number, so there are at most 512 of a rank.
struct PairParts {
  PairParts(const Tensor& experts, Index experts_in_all)
      : ranks(experts.dim(0)),
        num_experts(experts_in_all),
        of_rank(experts.dim(1) * experts.dim(2)),
        of_part(std::max<Index>(512, round_up(ceil_div(of_rank, Index{512}), Index{32}))),
        parts(ceil_div(of_rank, of_part)) {}

  Index ranks, num_experts;
  Index of_rank, of_part;  ///< pairs
  Index parts;             ///< of a rank

  Index columns() const { return ranks * num_experts; }
  /// [R, E, parts] i32: the pairs of each expert in each part.
  Index counts() const { return columns() * parts; }
};

}  // namespace megalith::ops::cuda
