#pragma once
#include <algorithm>
#include <span>

#include "megalith/tensor/tensor.h"

namespace megalith::ops {

inline constexpr Index kMaxGroups = 1024;

/// Groups of rows in a buffer [M, ...], such as the rows of each expert. Group g has `rows[g]` rows from row `begin[g]`
/// on. Groups lie in ascending order, and each begins at a multiple of `alignment`. The rows between a group's end and
/// the next multiple are zeros in what ops/rows.h makes and in results of one kernel for all groups. Loops over groups
/// neither read nor write them. Nothing reads or writes rows after the last group.
/// A part of the groups is a part of both tensors.
struct GroupRows {
  Tensor begin, rows;  // [G] i32
  Index alignment = 1;
  /// [2, G]: begin, then rows, in host memory. Loops over groups on a GPU read it when they run. Other ops do not.
  std::span<const std::int32_t> host = {};

  Index count() const { return begin.dim(0); }
};

/// The most rows of a buffer for `rows` rows in any of `groups` groups.
inline Index capacity_of_groups(Index rows, Index groups, Index alignment) {
  return (rows + (alignment - 1) * std::min(groups, rows)) / alignment * alignment;
}

/// Groups whose numbers the host reads.
struct HostGroups {
  const std::int32_t *begin = nullptr, *rows = nullptr;
};

}  // namespace megalith::ops
