#pragma once
#include <vector>

#include "megalith/ops/group_rows.h"

namespace megalith::ops {

/// Groups of given sizes, one after the other, each at a multiple of an alignment.
struct GroupLayout {
  Index alignment;
  std::vector<std::int32_t> host;  ///< begin, then rows
  Index end = 0;                   ///< of the last group, with the rows that fill it up

  explicit GroupLayout(const std::vector<Index>& sizes, Index of = 1) : alignment(of), host(2 * sizes.size()) {
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      host[g] = static_cast<std::int32_t>(end);
      host[sizes.size() + g] = static_cast<std::int32_t>(sizes[g]);
      end += round_up(sizes[g], alignment);
    }
  }
  Index count() const { return static_cast<Index>(host.size()) / 2; }
  Index begin(Index g) const { return host[static_cast<std::size_t>(g)]; }
  Index rows(Index g) const { return host[static_cast<std::size_t>(count() + g)]; }
  bool has(Index row) const {
    for (Index g = 0; g < count(); ++g) {
      if (row >= begin(g) && row < begin(g) + rows(g)) return true;
    }
    return false;
  }
  /// table: [2, G] i32 with the numbers of `host`, on any device.
  GroupRows in(const Tensor& table) const {
    return {.begin = table.rows(0, 1).reshaped({count()}),
            .rows = table.rows(1, 1).reshaped({count()}),
            .alignment = alignment,
            .host = HostGroups(host)};
  }
};

}  // namespace megalith::ops
