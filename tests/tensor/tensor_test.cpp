#include "megalith/tensor/tensor.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith {
namespace {

TEST(Tensor, RowsAndReshapeAreViews) {
  std::array<float, 12> data{};
  const Tensor t(data.data(), {4, 3}, DType::f32);
  EXPECT_EQ(t.rows(2, 1).data<float>(), data.data() + 6);
  EXPECT_EQ(t.rows(1, 2).shape(), (Shape{2, 3}));
  EXPECT_EQ(t.rows(4, 0).numel(), 0);
  EXPECT_EQ(t.reshaped({2, 6}).data<float>(), data.data());
  EXPECT_THROW(t.rows(3, 2), ShapeError);
  EXPECT_THROW(t.reshaped({5}), ShapeError);
}

TEST(Tensor, RefusesToBeReadAsAnotherType) {
  double value = 0;
  const Tensor t(&value, {1}, DType::f64);
  try {
    (void)t.data<float>();
    FAIL() << "nothing was thrown";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "[Tensor::data] dtype = f64: the caller reads it as f32");
  }
}

TEST(Tensor, DimsAndShapesAreChecked) {
  const Tensor t(nullptr, {2, 5}, DType::f32);
  const auto [rows, columns] = dims<2>(t, "x");
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(columns, 5);
  EXPECT_THROW(dims<3>(t, "x"), ShapeError);
  EXPECT_NO_THROW(expect_shape(t, {2, 5}, "x"));
  EXPECT_THROW(expect_shape(t, {5, 2}, "x"), ShapeError);
  EXPECT_THROW(expect_shape(Tensor(), {1}, "x"), ShapeError);
  EXPECT_FALSE(static_cast<bool>(Tensor()));
}

TEST(Shape, CountsWithoutOverflow) {
  constexpr Index kHuge = INT64_MAX;
  EXPECT_EQ(Shape({}).checked_numel(), 1);
  EXPECT_EQ(Shape({3, 4, 5}).checked_numel(), 60);
  EXPECT_EQ(Shape({kHuge, 0, 1}).checked_numel(), 0);
  EXPECT_EQ(Shape({kHuge, kHuge, 0}).checked_numel(), std::nullopt);
  EXPECT_EQ(Shape({kHuge}).checked_numel(), kHuge);
  EXPECT_EQ(Shape({kHuge, 2}).checked_numel(), std::nullopt);
  EXPECT_EQ(Shape({Index{1} << 32, Index{1} << 32}).checked_numel(), std::nullopt);
  EXPECT_EQ(Shape({3, -1}).checked_numel(), std::nullopt);
  EXPECT_EQ(Shape({0, -1}).checked_numel(), std::nullopt);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(static_cast<float>(bfloat16(1.0f)), 1.0f);
  EXPECT_EQ(static_cast<float>(bfloat16(1.00390625f)), 1.0f);       // half way, even below
  EXPECT_EQ(static_cast<float>(bfloat16(1.01171875f)), 1.015625f);  // half way, even above
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(static_cast<float>(bfloat16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace megalith
