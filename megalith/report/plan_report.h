#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/tensor/memory.h"
#include "megalith/train/recompute_choices.h"
#include "megalith/train/run_memory.h"

namespace megalith::apps {

/// The memory that a recipe's ranks take.
struct PlannedRanks {
  std::vector<BytesByOwner> ranks;  ///< all have the same owners
  /// The bytes of the largest rank with optimizer.distributed the other way round. Nothing where one model copy leaves
  /// no choice.
  std::optional<BytesByOwner> other_sharding = {};
  /// The bytes of the largest rank with one slot of clones less (moe.echo.slots), and with moe.echo.weights the other
  /// way. Nothing without slots.
  struct Slots {
    BytesByOwner one_less, other_weights;
  };
  std::optional<Slots> slots = {};
  /// The bytes of the rank that takes most, for each of train::recompute_choices().
  std::vector<BytesByOwner> by_recompute = {};
  /// What the largest rank costs with each optimizer.shard, in the order of ShardedState. Empty unless the optimizer is
  /// sharded, and may shard gradients.
  std::vector<train::RankCost> by_shard = {};

  /// The first of those that take most.
  std::size_t largest() const;
};

/// What Engine plans for each rank. Needs no GPU and runs nothing.
std::vector<BytesByOwner> plan_each_rank(const config::RunPlan& plan);
/// The same, with what other settings would take.
PlannedRanks plan_ranks(const config::RunPlan& plan);

/// Ranks whose memory is the same, owner by owner.
struct EqualRanks {
  std::vector<int> ranks;
  const BytesByOwner* bytes;
};
std::vector<EqualRanks> equal_ranks(const std::vector<BytesByOwner>& ranks);

/// What `megalith plan` prints, newline included. Text for people: ranks that take the same share a row, and what many
/// rows leave out is printed below. JSON: every rank, in bytes.
std::string plan_text(const config::RunPlan& plan, const PlannedRanks& planned);
std::string plan_json(const config::RunPlan& plan, const PlannedRanks& planned);

}  // namespace megalith::apps
