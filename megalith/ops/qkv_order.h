#pragma once
#include <cstdint>

#include "megalith/tensor/tensor.h"

namespace megalith::ops {

/// The order of the heads in a row of qkv [T, (A + 2G) D].
enum class QkvOrder : std::uint8_t {
  groups,  ///< for each kv head: its A/G q heads, its k, its v. A share of the columns has whole groups
  parts,   ///< all q heads, then all k, then all v: one stride leads from each to the next
};

/// The place among parts of the head at `place` among `groups` groups of `sharing` q heads.
constexpr Index place_in_parts(Index place, Index sharing, Index groups) {
  const Index group = place / (sharing + 2), in_group = place % (sharing + 2);
  if (in_group < sharing) return group * sharing + in_group;
  return groups * in_group + group;
}

}  // namespace megalith::ops
