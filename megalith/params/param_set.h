#pragma once
#include <deque>
#include <functional>
#include <ranges>
#include <string_view>
#include <vector>

#include "megalith/params/param_buffer.h"

namespace megalith {

/// All parameters of one rank: a flat buffer for each group of ranks over which gradients are summed (the dense grid's
/// parameters, the experts'), and one for those that a rule updates. Each of the first has a reducer, a gatherer and an
/// optimizer of its own; the last has values only. References to buffers and parameters stay valid for the set's life.
class ParamSet {
 public:
  /// How the parameters of such a placement are cut for the ranks that hold them.
  using PartitionOf = std::function<Partition(const grid::Placement&)>;

  ParamSet(std::vector<ParamSpec> specs, const Policy& policy, const PartitionOf& partition_of,
           ParamContents contents = ParamContents::values_and_gradients);
  /// Of a rank that shares its parameters with no other.
  ParamSet(std::vector<ParamSpec> specs, const Policy& policy,
           ParamContents contents = ParamContents::values_and_gradients);

  const Policy& policy() const { return policy_; }
  std::deque<ParamBuffer>& buffers() { return buffers_; }
  const std::deque<ParamBuffer>& buffers() const { return buffers_; }
  /// Those with gradients, which are the first of buffers().
  auto trained() const { return buffers_ | std::views::filter(&ParamBuffer::has_gradients); }
  /// The dense grid's, which gradients update: the first of buffers().
  ParamBuffer& dense() { return buffers_.front(); }
  const ParamBuffer& dense() const { return buffers_.front(); }

  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);
  /// Whether this rank updates its shards only, of some buffer.
  bool is_sharded() const;

  /// By owner, of all buffers (ParamBuffer::bytes).
  BytesByOwner bytes() const;
  void allocate(MemoryLedger& ledger);

 private:
  Policy policy_;
  std::deque<ParamBuffer> buffers_;  // which do not move
};

}  // namespace megalith
