#pragma once
#include <cstdint>

#include "megalith/base/types.h"
#include "megalith/grid/rank_generator.h"

namespace megalith {

/// What each of the ranks that hold the same parameters updates and remembers: everything, or its shard of every bucket
/// (ZeRO stage 1: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1). Values and gradients are whole in either
/// case, but a sharded step leaves the other ranks' shards of both out of date.
enum class Sharding : std::uint8_t { none, optimizer };

/// How a ParamBuffer is cut for the ranks that hold the same parameters.
struct Partition {
  Index bucket_elements = 0;  ///< a bucket is closed by the layer with which it reaches so many
  int shards = 1;             ///< ranks; a bucket has a shard for each, all of one size
  int own = 0;                ///< this rank's shard, in [0, shards)
  Sharding sharding = Sharding::none;
  grid::PerAxis place = {};  ///< this rank's coordinates on the parameters' grid: which of them it owns
};

}  // namespace megalith
