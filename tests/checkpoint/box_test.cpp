#include "megalith/checkpoint/box.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/fixture.h"

namespace megalith::checkpoint {
namespace {

constexpr Index kHuge = INT64_MAX;

TEST(Box, InsideWithoutOverflow) {
  EXPECT_TRUE(is_inside({{1, 2}, {2, 2}}, {3, 4}));
  EXPECT_TRUE(is_inside({{3, 0}, {0, 4}}, {3, 4}));
  EXPECT_FALSE(is_inside({{2, 2}, {2, 2}}, {3, 4}));
  EXPECT_FALSE(is_inside({{-1, 0}, {1, 1}}, {3, 4}));
  EXPECT_FALSE(is_inside({{0, 0}, {-1, 1}}, {3, 4}));
  EXPECT_FALSE(is_inside({{kHuge, 0}, {1, 1}}, {3, 4}));
  EXPECT_FALSE(is_inside({{1, 0}, {kHuge, 1}}, {3, 4}));
  EXPECT_FALSE(is_inside({{0}, {1}}, {3, 4}));
}

TEST(Runs, MergeWhatIsContiguous) {
  const Box whole{{}, {4, 5, 6}};
  EXPECT_EQ(Runs(whole, whole).count(), 1);
  EXPECT_EQ(Runs(whole, whole).length(), 120);
  const Runs rows({{1, 0, 0}, {2, 5, 6}}, whole);
  EXPECT_EQ(rows.count(), 1);
  EXPECT_EQ(rows.length(), 60);
  EXPECT_EQ(rows.start(0), 30);
  const Runs columns({{0, 1, 2}, {4, 3, 2}}, whole);
  EXPECT_EQ(columns.length(), 2);
  EXPECT_EQ(columns.count(), 12);
  EXPECT_EQ(columns.start(0), 8);
  EXPECT_EQ(columns.start(4), 30 + 6 + 6 + 2);
  EXPECT_EQ(Runs({{0, 0, 0}, {4, 0, 6}}, whole).count(), 0);
}

TEST(CopyCommon, EqualsCopyingElementByElement) {
  std::mt19937_64 random(3);
  const auto random_box = [&](const Shape& global) {
    Box box;
    for (int i = 0; i < global.rank(); ++i) {
      const Index begin = static_cast<Index>(random() % static_cast<std::uint64_t>(global[i]));
      box.offset[static_cast<std::size_t>(i)] = begin;
      box.shape.push_back(1 + static_cast<Index>(random() % static_cast<std::uint64_t>(global[i] - begin)));
    }
    return box;
  };
  int overlapping = 0;
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    for (std::uint64_t i = 0; i < random() % 5; ++i) shape.push_back(1 + static_cast<Index>(random() % 6));
    const DType dtype = std::array{DType::u8, DType::bf16, DType::f32, DType::f64}[random() % 4];
    const Global global = random_global("t", dtype, shape, random);
    const Global other = random_global("t", dtype, shape, random);
    const Box from_box = random_box(shape), to_box = random_box(shape);
    const Part from = cut(global, from_box);
    Part to = cut(other, to_box);
    copy_common(from_box, from.values.data(), to_box, to.values.data(), size_of(dtype));

    // What `to` should be: `other`, with the common box taken from `global`.
    Global want = other;
    if (const auto common = intersect(from_box, to_box)) {
      ++overlapping;
      const Part shared = cut(global, *common);
      const Runs runs(*common, {{}, shape});
      for (Index run = 0; run < runs.count(); ++run) {
        const Index bytes = runs.length() * size_of(dtype);
        std::memcpy(want.values.data() + runs.start(run) * size_of(dtype), shared.values.data() + run * bytes,
                    static_cast<std::size_t>(bytes));
      }
    }
    ASSERT_EQ(to.values, cut(want, to_box).values) << "round " << round << ", shape " << shape;
  }
  EXPECT_GT(overlapping, 500);
}

}  // namespace
}  // namespace megalith::checkpoint
