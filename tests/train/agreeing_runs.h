#pragma once
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/small_run.h"

namespace megalith::support {

/// The grid promise in fp64, but for gradients (docs/numerics.md).
inline void expect_fp64_agrees(const RunRecord& got, const RunRecord& want) {
  EXPECT_THAT(got.parameters.disagreeing(), ::testing::IsEmpty());
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-12);
  EXPECT_LT(relative_error(got.norms, want.norms), 1e-12);
  EXPECT_LT(relative_error({got.evaluated}, {want.evaluated}), 1e-12);
  ASSERT_EQ(got.parameters.tensors().size(), want.parameters.tensors().size());
  for (const auto& [name, values] : want.parameters.tensors())
    EXPECT_LT(relative_error(got.parameters.at(name), values), 1e-10) << name;
}

/// Gradients of the first step. Those of a sharded optimizer are each rank's sums of its own shards: not compared.
inline void expect_gradients_agree(const Grid& grid, const RunRecord& got, const RunRecord& want, double limit) {
  if (grid.sharding != Sharding::none) return;
  for (const auto& [name, values] : want.gradients.tensors())
    EXPECT_LT(relative_error(got.gradients.at(name), values), limit) << name;
}

/// all_grids(), then sharded_grids().
inline std::vector<Grid> all_and_sharded_grids() {
  std::vector<Grid> grids = all_grids();
  std::ranges::copy(sharded_grids(), std::back_inserter(grids));
  return grids;
}

}  // namespace megalith::support
