#include "megalith/base/philox.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

// Known answers of the authors' Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Philox4{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  const std::uint32_t ones = 0xffffffffu;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Philox4{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (Philox4{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, NormalHasMeanZeroAndVarianceOne) {
  const RandomSite site{.seed = 7, .step = 0, .site = 3};
  double sum = 0, squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = site.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 4.0 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1.0, 4.0 * std::sqrt(2.0 / kCount));
}

TEST(Philox, StreamsDifferBySeedStepAndSite) {
  const RandomSite a{1, 2, 3};
  EXPECT_NE(a.block(0), (RandomSite{2, 2, 3}.block(0)));
  EXPECT_NE(a.block(0), (RandomSite{1, 3, 3}.block(0)));
  EXPECT_NE(a.block(0), (RandomSite{1, 2, 4}.block(0)));
  EXPECT_EQ(a.word(5), a.block(1)[1]);
}

}  // namespace
}  // namespace megalith
