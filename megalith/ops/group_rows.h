#pragma once
#include <algorithm>
#include <span>

#include "megalith/tensor/tensor.h"

namespace megalith::ops {

inline constexpr Index kMaxGroups = 1024;

/// The numbers of groups in host memory, or null.
struct HostGroups {
  const std::int32_t *begin = nullptr, *rows = nullptr;

  HostGroups() = default;
  HostGroups(const std::int32_t* begins, const std::int32_t* counts) : begin(begins), rows(counts) {}
  /// [2, G]: begin, then rows.
  explicit HostGroups(std::span<const std::int32_t> table)
      : HostGroups(table.data(), table.data() + table.size() / 2) {}
  /// The groups from `first` on.
  HostGroups from(Index first) const {
    return begin == nullptr ? HostGroups() : HostGroups(begin + first, rows + first);
  }
};

/// Groups of rows in a buffer [M, ...], such as the rows of each expert. Group g has `rows[g]` rows from row `begin[g]`
/// on. Groups lie in ascending order, and each begins at a multiple of `alignment`. The rows between a group's end and
/// the next multiple are zeros in what ops/rows.h makes and in results of one kernel for all groups. Loops over groups
/// neither read nor write them. Nothing reads or writes rows after the last group.
struct GroupRows {
  Tensor begin, rows;  // [G] i32
  Index alignment = 1;
  /// The same numbers. Loops over groups on a GPU read them when they run. Other ops do not.
  HostGroups host = {};

  Index count() const { return begin.dim(0); }
  /// Groups [first, first + count).
  GroupRows part(Index first, Index count) const {
    return {.begin = begin.rows(first, count),
            .rows = rows.rows(first, count),
            .alignment = alignment,
            .host = host.from(first)};
  }
};

/// The group that has row `row`, of groups in host memory; -1: none.
inline Index group_with(const GroupRows& groups, Index row) {
  const std::int32_t *begin = groups.begin.data<std::int32_t>(), *rows = groups.rows.data<std::int32_t>();
  for (Index g = 0; g < groups.count(); ++g) {
    if (begin[g] <= row && row < Index{begin[g]} + rows[g]) return g;
  }
  return -1;
}

/// The most rows of a buffer for `rows` rows in any of `groups` groups.
inline Index capacity_of_groups(Index rows, Index groups, Index alignment) {
  return (rows + (alignment - 1) * std::min(groups, rows)) / alignment * alignment;
}

}  // namespace megalith::ops
