#pragma once
#include <string>

#include "megalith/comm/group.h"
#include "megalith/params/param_spec.h"

namespace megalith::nn {

/// The `part`-th of `sub-microbatches` equal pieces of a size. Throws ConfigError E_DIM_NOT_DIVISIBLE naming `what`.
Index shard(Index size, const comm::Group& tp, const std::string& what);

// How a parameter is cut over the tensor-parallel group. Weights are [out, in] with init N(0, std).
ParamSpec rows_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std);
ParamSpec columns_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std);
/// A bias or gain of a column-parallel layer: [size/tp], zeros, not decayed.
ParamSpec vector_split(std::string name, Index size, const comm::Group& tp);
/// The same on all tp ranks, which meet the same rows. Not decayed unless it is a matrix.
ParamSpec replicated(std::string name, const Shape& shape, const comm::Group& tp, Init init, double init_std = 0);

}  // namespace megalith::nn
