#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/grid/rank_generator.h"

namespace megalith {

/// What each of the ranks that hold the same parameters updates, and keeps moments for: all elements, or its shard of
/// every bucket (ZeRO stage 1: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1). Values are whole in both cases,
/// but after a sharded step the other ranks' shards are out of date.
enum class Sharding : std::uint8_t { none, optimizer };

/// What a sharded optimizer holds only its shards of. `moments`: moments and masters; gradients are whole, and after a
/// step the other ranks' shards of them are undefined. `gradients`: also the sums of gradients (ZeRO stage 2, section
/// 5.2), of parameters whose gradients have a window (ParamBuffer).
enum class ShardedState : std::uint8_t { moments, gradients };
inline constexpr std::array<std::string_view, 2> kShardedStateNames = {"moments", "gradients"};

/// The partition of a ParamBuffer over the ranks that hold the same parameters.
struct Partition {
  Index bucket_elements = 0;  ///< a bucket ends with the layer with which it reaches this size
  int shards = 1;             ///< ranks; a bucket has one shard per rank, all of one size
  int own = 0;                ///< this rank's shard, in [0, shards)
  Sharding sharding = Sharding::none;
  ShardedState shard = ShardedState::moments;  ///< if sharded
  bool one_microbatch = false;                 ///< a step has one: a gradient is written once
  grid::PerAxis place = {};  ///< this rank's coordinates on the parameters' grid: they decide which parameters it owns
};

}  // namespace megalith
