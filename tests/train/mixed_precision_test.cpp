#include <gtest/gtest.h>

#include "tests/train/precision_bands.h"

// The policies with 16-bit compute on the CPU: how close they come to fp32 and to one rank (docs/numerics.md).
namespace megalith {
namespace {

using support::expect_within;
using support::Grid;
using support::PolicyRow;
using support::RunRecord;

std::unique_ptr<RunRecord> trained(const Grid& grid, const std::string& precision) {
  auto record = std::make_unique<RunRecord>();
  support::train_on(grid, precision, *record);
  return record;
}

const RunRecord& one_rank_in(const std::string& precision) {
  static const std::unique_ptr<RunRecord> fp32 = trained({}, "fp32"), bf16 = trained({}, "bf16"),
                                          fp16 = trained({}, "fp16");
  return precision == "fp32" ? *fp32 : precision == "bf16" ? *bf16 : *fp16;
}

TEST(MixedPrecision, TrainsAsFp32DoesWithinItsBands) {
  for (const PolicyRow& row : support::kPolicies) {
    SCOPED_TRACE(row.precision);
    expect_within(row.rounded, one_rank_in(row.precision), one_rank_in("fp32"), row.loss_scale);
  }
}

class MixedPrecisionGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(MixedPrecisionGrid, AgreesWithOneRankWithinItsBandsAndWithItselfToTheBit) {
  for (const PolicyRow& row : support::kPolicies) {
    SCOPED_TRACE(row.precision);
    const auto first = trained(GetParam(), row.precision), second = trained(GetParam(), row.precision);
    expect_within(GetParam().tp > 1 ? row.rounded : support::kWithoutTp, *first, one_rank_in(row.precision));
    EXPECT_EQ(first->losses, second->losses);
    EXPECT_EQ(first->norms, second->norms);
    EXPECT_EQ(first->parameters.tensors(), second->parameters.tensors());
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixedPrecisionGrid, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
