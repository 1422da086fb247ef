#include <gtest/gtest.h>

#include "tests/train/small_run.h"

// The policies with 16-bit compute on the CPU: how close they come to fp32 and to one rank (docs/numerics.md).
namespace megalith {
namespace {

using support::Grid;
using support::relative_error;
using support::RunRecord;

/// What a policy may differ from, relative to the largest number: the losses and gradient norms of 20 steps, the first
/// gradients.
struct Bands {
  double first_loss, losses, norms, gradients;
};

/// `scale`: what got's gradients are still multiplied by, in comparison with want's.
void expect_within(const Bands& bands, const RunRecord& got, const RunRecord& want, double scale = 1) {
  EXPECT_LE(relative_error({got.losses[0]}, {want.losses[0]}), bands.first_loss);
  EXPECT_LE(relative_error(got.losses, want.losses), bands.losses);
  EXPECT_LE(relative_error(got.norms, want.norms), bands.norms);
  EXPECT_LE(relative_error({got.evaluated}, {want.evaluated}), bands.losses);
  for (const auto& [name, values] : want.gradients.tensors()) {
    std::vector<double> unscaled = got.gradients.at(name);
    for (double& value : unscaled) value /= scale;
    EXPECT_LE(relative_error(unscaled, values), bands.gradients) << name;
  }
}

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

struct PolicyRow {
  const char* precision;
  double loss_scale;
  Bands rounded;  ///< from fp32; and of tp grids from one rank: partial sums are rounded before they cross ranks
};
constexpr PolicyRow kPolicies[] = {{"bf16", 1, {1e-4, 5e-4, 5e-3, 4e-2}}, {"fp16", 65536, {1e-5, 5e-5, 5e-4, 5e-3}}};

/// How far grids without tp are from one rank: the passes have the same bits, f32 gradients are summed in another
/// order, and some time a master lands on the other side of a rounding of its copy. How often depends on the order of
/// the sums inside each product too, so on the machine and the build: norms were seen to differ by 9e-6 (AVX2) and 3e-5
/// (one thread, own loops). One copy rounded otherwise costs what its rounding costs, and few are: a fifth and a tenth
/// of the distance between bf16 and fp32.
constexpr Bands kWithoutTp{0, kPolicies[0].rounded.losses / 5, kPolicies[0].rounded.norms / 10, 1e-6};

TEST(MixedPrecision, TrainsAsFp32DoesWithinItsBands) {
  for (const PolicyRow& row : kPolicies) {
    SCOPED_TRACE(row.precision);
    expect_within(row.rounded, one_rank_in(row.precision), one_rank_in("fp32"), row.loss_scale);
  }
}

class MixedPrecisionGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(MixedPrecisionGrid, AgreesWithOneRankWithinItsBandsAndWithItselfToTheBit) {
  for (const PolicyRow& row : kPolicies) {
    SCOPED_TRACE(row.precision);
    const auto first = trained(GetParam(), row.precision), second = trained(GetParam(), row.precision);
    expect_within(GetParam().tp > 1 ? row.rounded : kWithoutTp, *first, one_rank_in(row.precision));
    EXPECT_EQ(first->losses, second->losses);
    EXPECT_EQ(first->norms, second->norms);
    EXPECT_EQ(first->parameters.tensors(), second->parameters.tensors());
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixedPrecisionGrid, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
