#pragma once
#include <algorithm>

#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/qkv_layout.h"
#include "megalith/ops/row_parts.h"

// The q heads of a kv head are neighbours. Code that treats them alike takes them as one block of A/G D numbers.

namespace megalith::ops::cpu {

/// visit(row, kv head, the first element of its q heads) for the kv heads of some rows, in order.
template <class Visit>
void for_kv_heads(const QkvLayout& layout, Index first_row, Index rows, const Visit& visit) {
  for (Index row = first_row; row < first_row + rows; ++row) {
    for (Index kv = 0; kv < layout.num_kv_heads; ++kv)
      visit(row, kv, row * layout.columns() + kv * layout.group_columns());
  }
}
/// The same for all rows, by the team's threads.
template <class Visit>
void for_all_kv_heads(const QkvLayout& layout, const Visit& visit) {
  parallel_rows(layout.rows, layout.columns(),
                [&](Index first, Index count) { for_kv_heads(layout, first, count, visit); });
}

/// visit(row, kv head, element, the block's part) sums blocks of rows into parts [blocks, columns].
template <class A, class Visit>
void sum_blocks(const QkvLayout& layout, A* parts, Index columns, const Visit& visit) {
  parallel_pieces(layout.rows, kSumRows, layout.rows * layout.columns(), [&](Index first, Index count) {
    A* part = parts + first / kSumRows * columns;
    std::fill_n(part, columns, A{0});
    for_kv_heads(layout, first, count, [&](Index row, Index kv, Index at) { visit(row, kv, at, part); });
  });
}

template <class T>
void copy_v(const T* from, T* to, const QkvLayout& layout) {
  const Index v = layout.normed_of_group() * layout.head_dim;
  if (from != to) std::copy_n(from + v, layout.head_dim, to + v);
}

}  // namespace megalith::ops::cpu
