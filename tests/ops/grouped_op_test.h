#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/groups.h"
#include "tests/ops/op_test.h"

namespace megalith::ops {

using GroupSizes = std::vector<Index>;

inline Index sum_of(const GroupSizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), Index{0}); }

/// Rows of groups lie in a buffer that is NaN elsewhere: between groups and after the last.
class GroupedOpTest : public OpTest {
 protected:
  static constexpr Index kUnused = 3;  // rows after the last group's

  /// Without the host's copy, which the CPU does not read.
  GroupRows put_groups(const GroupLayout& layout) {
    GroupRows groups = layout.in(put_ids(layout.host).reshaped({2, layout.count()}));
    groups.host = {};
    return groups;
  }
  /// Groups [first, first + count).
  static GroupRows part_of(const GroupRows& groups, Index first, Index count) {
    return {.begin = groups.begin.rows(first, count),
            .rows = groups.rows.rows(first, count),
            .alignment = groups.alignment};
  }
  Tensor empty_rows(const GroupLayout& layout, Index columns) { return empty({layout.end + kUnused, columns}); }
  Tensor put_rows(const Values& values, const GroupLayout& layout, Index columns, DType type) {
    Values all(static_cast<std::size_t>((layout.end + kUnused) * columns), std::nan(""));
    auto from = values.begin();
    for (Index g = 0; g < layout.count(); ++g) {
      const Index count = layout.rows(g) * columns;
      std::copy_n(from, count, all.begin() + layout.begin(g) * columns);
      from += count;
    }
    return put({layout.end + kUnused, columns}, all, type);
  }
  Tensor put_rows(const Values& values, const GroupLayout& layout, Index columns) {
    return put_rows(values, layout, columns, dtype());
  }
  /// The rows of the groups; the others must still be NaN.
  static Values used(const Tensor& tensor, const GroupLayout& layout) {
    const Values all = values_of(tensor);
    const Index columns = tensor.dim(1);
    Values rows;
    for (Index row = 0; row < tensor.dim(0); ++row) {
      const bool is_used = layout.has(row);
      for (Index i = row * columns; i < (row + 1) * columns; ++i) {
        const double value = all[static_cast<std::size_t>(i)];
        if (is_used)
          rows.push_back(value);
        else
          EXPECT_TRUE(std::isnan(value)) << "row " << row << " of no group was written";
      }
    }
    return rows;
  }
  void expect_close(const Values& got, const Values& want, const char* what) const {
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LE(relative_error(got, want), GetParam().tolerance) << what;
  }
};

}  // namespace megalith::ops
