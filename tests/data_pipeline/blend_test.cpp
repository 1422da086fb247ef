#include "megalith/data/blend.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

Blend blend_of(const std::vector<double>& weights) { return Blend(weights); }

TEST(Blend, EveryBlockHoldsItsQuotas) {
  const Blend blend = blend_of({0.3, 0.7});
  EXPECT_EQ(blend.quota(0) + blend.quota(1), 65536);
  EXPECT_EQ(blend.quota(0), 19661);  // 19660.8
  const Blend three = blend_of({1, 1, 1});
  EXPECT_EQ(three.quota(0), 21846);  // the first of equals gets the part left over
  EXPECT_EQ(three.quota(2), 21845);
}

// Each corpus gives its samples in order, none twice, none left out, and never strays far from its weight.
TEST(Blend, SpreadsEvenlyAndInOrder) {
  for (const std::vector<double>& weights :
       {std::vector<double>{0.3, 0.7}, {5, 1, 1, 3}, {1, 1000}, {0.25, 0.25, 0.5}, {1e-3, 1, 2, 3, 4, 5}}) {
    const Blend blend = blend_of(weights);
    std::vector<Index> given(weights.size());
    for (Index n = 0; n < 150000; ++n) {
      const Blend::Draw draw = blend.at(n);
      ASSERT_EQ(draw.n, given[static_cast<std::size_t>(draw.corpus)]++) << n;
      for (int c = 0; c < blend.size(); ++c) {
        const double wanted = static_cast<double>(blend.quota(c)) / 65536 * static_cast<double>(n + 1);
        ASSERT_LE(std::abs(static_cast<double>(given[static_cast<std::size_t>(c)]) - wanted), 16) << n;
      }
    }
  }
}

TEST(Blend, OneCorpusGivesAll) { EXPECT_EQ(blend_of({7}).at(123456789), (Blend::Draw{0, 123456789})); }

TEST(Blend, RefusesWeightsThatCannotBeMet) {
  EXPECT_THROW(blend_of({1, 0}), ConfigError);
  EXPECT_THROW(blend_of({1, -1}), ConfigError);
  EXPECT_THROW(blend_of({1, 1e-6}), ConfigError);
  EXPECT_THROW(blend_of({1, std::nan("")}), ConfigError);
}

}  // namespace
}  // namespace megalith::data
