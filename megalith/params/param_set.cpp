#include "megalith/params/param_set.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {

ParamSet::ParamSet(std::vector<ParamSpec> specs, const Policy& policy, const PartitionOf& partition_of,
                   ParamContents contents)
    : policy_(policy) {
  std::vector<ParamSpec> dense, expert, by_rule;
  for (ParamSpec& spec : specs) {
    std::vector<ParamSpec>& of = spec.update == Update::by_rule                  ? by_rule
                                 : spec.placement.grid == grid::GridKind::expert ? expert
                                                                                 : dense;
    of.push_back(std::move(spec));
  }
  const auto add = [&](std::vector<ParamSpec> some, const Policy& of_them, ParamContents held) {
    const grid::Placement placement = some.empty() ? grid::kSharded : some.front().placement;
    Partition partition = partition_of(placement);
    if (held == ParamContents::values) partition.sharding = Sharding::none;  // no optimizer updates them
    buffers_.emplace_back(std::move(some), of_them, partition, held);
  };
  add(std::move(dense), policy, contents);
  if (!expert.empty()) add(std::move(expert), policy, contents);
  if (!by_rule.empty()) add(std::move(by_rule), {policy.master, policy.master}, ParamContents::values);
}

ParamSet::ParamSet(std::vector<ParamSpec> specs, const Policy& policy, ParamContents contents)
    : ParamSet(
          std::move(specs), policy,
          [](const grid::Placement&) { return Partition{.bucket_elements = std::numeric_limits<Index>::max()}; },
          contents) {}

Param* ParamSet::find(std::string_view name) {
  for (ParamBuffer& buffer : buffers_) {
    if (Param* const param = buffer.find(name)) return param;
  }
  return nullptr;
}

Param& ParamSet::at(std::string_view name) {
  if (Param* const param = find(name)) return *param;
  throw InternalError(str("[ParamSet::at] parameter ", name, ": this rank holds none of that name"));
}

bool ParamSet::is_sharded() const { return std::ranges::any_of(buffers_, &ParamBuffer::is_sharded); }

BytesByOwner ParamSet::bytes() const {
  BytesByOwner sum;
  for (const ParamBuffer& buffer : buffers_) {
    for (const auto& [owner, bytes] : buffer.bytes()) sum[owner] += bytes;
  }
  return sum;
}

void ParamSet::allocate(MemoryLedger& ledger) {
  for (ParamBuffer& buffer : buffers_) buffer.allocate(ledger);
}

}  // namespace megalith
