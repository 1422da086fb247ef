#include "megalith/eval/windows.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::eval {
namespace {

Index targets_of(const std::vector<Window>& windows) {
  Index sum = 0;
  for (const Window& window : windows) sum += window.targets();
  return sum;
}

// The table of the specification: start, first and last target.
TEST(Windows, SlideAsTheSmallCaseOfTheSpecification) {
  const std::vector<Window> want = {{0, 1, 17},   {4, 17, 21},  {8, 21, 25},  {12, 25, 29}, {16, 29, 33},
                                    {20, 33, 37}, {24, 37, 41}, {28, 41, 45}, {32, 45, 49}, {36, 49, 50}};
  EXPECT_EQ(sliding_windows(50, 16, 4), want);
}

TEST(Windows, SlideOverWikiText) {
  const std::vector<Window> windows = sliding_windows(270'329, 1024, 32);
  EXPECT_EQ(windows.size(), 8417u);
  EXPECT_EQ(targets_of(windows), 270'328);
  for (std::size_t i = 1; i < windows.size(); ++i) EXPECT_GE(windows[i].first_target - windows[i].start, 993) << i;
}

TEST(Windows, EveryTargetIsScoredOnceByAWindowThatFits) {
  for (const Index tokens : {2, 3, 15, 16, 17, 18, 33, 34, 100}) {
    for (const auto& [size, stride] : {std::pair{1, 1}, {16, 1}, {16, 5}, {16, 16}, {40, 3}}) {
      for (const auto& windows : {sliding_windows(tokens, size, stride), disjoint_windows(tokens, size)}) {
        Index next = 1;
        for (const Window& window : windows) {
          EXPECT_EQ(window.first_target, next) << tokens << ", " << size << ", " << stride;
          EXPECT_GT(window.first_target, window.start);
          EXPECT_GT(window.end, window.first_target);
          EXPECT_LE(window.end - 1 - window.start, size);
          next = window.end;
        }
        EXPECT_EQ(next, tokens);
      }
    }
  }
}

// Its get_rolling_token_windows() of the tokens 1 to 10, with the token 100 in front, max_seq_len 4 and context_len 1:
// ([100, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8]), ([6, 7, 8, 9], [9, 10]).
TEST(Windows, DisjointOnesAreTheHarnesss) {
  EXPECT_EQ(disjoint_windows(11, 4), (std::vector<Window>{{0, 1, 5}, {4, 5, 9}, {6, 9, 11}}));
  EXPECT_EQ(disjoint_windows(3, 4), (std::vector<Window>{{0, 1, 3}}));
}

TEST(Windows, APassageIsAPartOfTheText) {
  const std::vector<std::int32_t> ids = {7, 8, 9, 10, 11};
  const Passage passage = passage_of(ids, {1, 3, 5});
  EXPECT_TRUE(std::ranges::equal(passage.ids, std::vector<std::int32_t>{8, 9, 10, 11}));
  EXPECT_EQ(passage.first_target, 2);
  EXPECT_EQ(passage.targets(), 2);
  EXPECT_EQ(passage.inputs(), 3);
}

TEST(Windows, SizesAreChecked) {
  EXPECT_THROW(sliding_windows(1, 4, 2), InternalError);
  EXPECT_THROW(sliding_windows(9, 4, 0), InternalError);
  EXPECT_THROW(sliding_windows(9, 4, 5), InternalError);
  EXPECT_THROW(disjoint_windows(9, 0), InternalError);
}

}  // namespace
}  // namespace megalith::eval
