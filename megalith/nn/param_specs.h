#pragma once
#include <string>

#include "megalith/comm/group.h"
#include "megalith/params/param_spec.h"

namespace megalith::nn {

/// size / tp.size(), the size of one rank's shard. Throws ConfigError E_DIM_NOT_DIVISIBLE that names `what`.
Index shard(Index size, const comm::Group& tp, const std::string& what);

// How a parameter is sharded over the tensor-parallel group. Weights are [out, in] with init N(0, std).
ParamSpec rows_split(const std::string& name, Index rows, Index columns, const comm::Group& tp, double init_std);
/// A weight with several rows per unit: [units, rows, in], split by units. The n-th rows of all units are a matrix.
ParamSpec units_split(const std::string& name, const Shape& shape, const comm::Group& tp, double init_std);
ParamSpec columns_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std);
/// A bias of a column-parallel layer, split by its first dimension: zeros, not decayed.
ParamSpec vector_split(const std::string& name, const Shape& shape, const comm::Group& tp);
/// The same on all tp ranks, which meet the same rows. Not decayed unless it is a matrix.
ParamSpec replicated(std::string name, const Shape& shape, const comm::Group& tp, Init init, double init_std = 0);

}  // namespace megalith::nn
