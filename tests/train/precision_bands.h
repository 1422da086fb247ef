#pragma once
#include <gtest/gtest.h>

#include "tests/train/small_run.h"

namespace megalith::support {

/// What a policy may differ from, relative to the largest number: the losses and gradient norms of 20 steps, the first
/// gradients.
struct Bands {
  double first_loss, losses, norms, gradients;
};

/// `scale`: what got's gradients are still multiplied by, in comparison with want's.
inline void expect_within(const Bands& bands, const RunRecord& got, const RunRecord& want, double scale = 1) {
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

/// The bands of a model with post-norm, whose partial sums pass more norms: tp 4 in fp16 was seen at 1.31 times.
inline Bands of_post_norm(const Bands& bands) {
  return {1.5 * bands.first_loss, 1.5 * bands.losses, 1.5 * bands.norms, bands.gradients};
}

struct PolicyRow {
  const char* precision;
  double loss_scale;
  Bands rounded;  ///< from fp32; and of tp grids from one rank: partial sums are rounded before they cross ranks
};
inline constexpr PolicyRow kPolicies[] = {{"bf16", 1, {1e-4, 5e-4, 5e-3, 4e-2}},
                                          {"fp16", 65536, {1e-5, 5e-5, 5e-4, 5e-3}}};

/// How far grids without tp are from one rank: the passes have the same bits, f32 gradients are summed in another
/// order, and some time a master lands on the other side of a rounding of its copy. How often depends on the order of
/// the sums inside each product too, so on the machine and the build: norms were seen to differ by 9e-6 (AVX2) and 3e-5
/// (one thread, own loops). One copy rounded otherwise costs what its rounding costs, and few are: a fifth and a tenth
/// of the distance between bf16 and fp32.
inline constexpr Bands kWithoutTp{0, kPolicies[0].rounded.losses / 5, kPolicies[0].rounded.norms / 10, 1e-6};

}  // namespace megalith::support
