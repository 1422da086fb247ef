#pragma once
#include <deque>
#include <functional>
#include <ranges>
#include <string_view>
#include <vector>

#include "megalith/params/param_buffer.h"

namespace megalith {

/// All parameters of one rank. There is one flat buffer per reduction group (the dense grid's parameters, the
/// experts'), and one for parameters that a rule updates. Each of the first kind has its own reducer, gatherer and
/// optimizer. The last one has only values. References to buffers and parameters stay valid for the set's life.
class ParamSet {
 public:
  /// The partition of the parameters of a placement over the ranks that hold them.
  using PartitionOf = std::function<Partition(const grid::Placement&)>;

  ParamSet(std::vector<ParamSpec> specs, const Policy& policy, const PartitionOf& partition_of,
           ParamContents contents = ParamContents::values_and_gradients);
  /// For a rank that shares its parameters with no other.
  ParamSet(std::vector<ParamSpec> specs, const Policy& policy,
           ParamContents contents = ParamContents::values_and_gradients);

  const Policy& policy() const { return policy_; }
  std::deque<ParamBuffer>& buffers() { return buffers_; }
  const std::deque<ParamBuffer>& buffers() const { return buffers_; }
  /// The buffers with gradients. They are the first of buffers().
  auto trained() const { return buffers_ | std::views::filter(&ParamBuffer::has_gradients); }
  /// The dense grid's parameters that gradients update: the first of buffers().
  ParamBuffer& dense() { return buffers_.front(); }
  const ParamBuffer& dense() const { return buffers_.front(); }

  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);
  /// Null for an unknown name.
  Param* find(std::string_view name);
  /// Whether this rank updates its shards only, of some buffer.
  bool is_sharded() const;

  /// By owner, of all buffers (ParamBuffer::bytes).
  BytesByOwner bytes() const;
  void allocate(MemoryLedger& ledger);

 private:
  Policy policy_;
  std::deque<ParamBuffer> buffers_;  // a deque: elements do not move
};

}  // namespace megalith
