#include "megalith/checkpoint/box.h"

#include <gtest/gtest.h>

#include "megalith/base/str.h"

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

// Every range of a small tensor: the boxes' elements are those of the range, in order, and no box could be joined with
// the next.
TEST(BoxesOfRange, AreTheElementsOfTheRangeInOrder) {
  for (const Shape& shape : {Shape{7}, Shape{3, 4}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}, Shape{4, 1}}) {
    const Index total = shape.numel();
    for (Index begin = 0; begin <= total; ++begin) {
      for (Index end = begin; end <= total; ++end) {
        const std::vector<Box> boxes = boxes_of_range(shape, begin, end);
        EXPECT_LE(boxes.size(), 2u * static_cast<unsigned>(shape.rank()) - (shape.rank() > 0 ? 1 : 0));
        Index next = begin;
        for (const Box& box : boxes) {
          const Runs runs(box, {{}, shape});
          ASSERT_TRUE(is_inside(box, shape));
          ASSERT_EQ(runs.count(), 1) << "one stretch of memory";
          EXPECT_EQ(runs.start(0), next);
          EXPECT_GT(runs.length(), 0);
          next += runs.length();
        }
        EXPECT_EQ(next, end) << shape << " from " << begin;
      }
    }
  }
}

TEST(ForEachBlock, CoversASliceInBlocksOfWholeRowsWhereTheyFit) {
  const TensorSlice slice{"w", {10, 8}, {4, 2}, {5, 3}};
  std::vector<std::string> blocks;
  const auto list = [&](Index most) {
    blocks.clear();
    for_each_block(slice, most, [&](const TensorSlice& block, Index first) {
      EXPECT_EQ(block.global, slice.global);
      blocks.push_back(str(first, ": ", block.offset[0], ",", block.offset[1], " ", block.local));
    });
    return blocks;
  };
  EXPECT_EQ(list(100), (std::vector<std::string>{"0: 4,2 [5, 3]"}));
  EXPECT_EQ(list(7), (std::vector<std::string>{"0: 4,2 [2, 3]", "6: 6,2 [2, 3]", "12: 8,2 [1, 3]"}));
  EXPECT_EQ(list(2).front(), "0: 4,2 [1, 2]") << "a row that is too long";
}

}  // namespace
}  // namespace megalith::checkpoint
