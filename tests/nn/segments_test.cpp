#include "megalith/nn/segments.h"

#include <gtest/gtest.h>

#include "megalith/base/str.h"

// The orders of passes, written out: sublayer, stage (f: first, m: middle, l: last; n: norm again, r: forward again),
// and of several sub-microbatches which.
namespace megalith {
namespace {

using nn::Overlap;
using nn::Segment;
using nn::StageCounts;

/// Two sublayers per layer, three stages each.
std::vector<StageCounts> layers(Index count, bool captures_first = false, bool captures_second = false) {
  std::vector<StageCounts> all;
  for (Index layer = 0; layer < count; ++layer) {
    all.push_back({layer, captures_first});
    all.push_back({layer, captures_second});
  }
  return all;
}

std::vector<Segment> segments_of(const std::vector<StageCounts>& sublayers, const Overlap& overlap,
                                 nn::Again again = {}) {
  return nn::make_segments(sublayers, overlap, again);
}

std::string text(std::span<const nn::Turn> turns, int sub_batches = 1) {
  std::string all;
  for (const nn::Turn& turn : turns) {
    const char* sub_batch = sub_batches == 1 ? "" : turn.sub_batch == 0 ? "a" : "b";
    all += str(all.empty() ? "" : " ", turn.sublayer,
               turn.stage == nn::kNormAgain      ? 'n'
               : turn.stage == nn::kForwardAgain ? 'r'
                                                 : "fml"[turn.stage],
               sub_batch);
  }
  return all;
}

TEST(Segments, WithoutCaptureThereIsOneThatEndsWithTheClosingSeam) {
  const std::vector<Segment> segments = segments_of(layers(2), {});
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].begin, 0u);
  EXPECT_EQ(segments[0].end, 4u);
  EXPECT_FALSE(segments[0].captured);
  EXPECT_EQ(text(segments[0].forward), "0f 0m 0l 1f 1m 1l 2f 2m 2l 3f 3m 3l 4f");
  EXPECT_EQ(text(segments[0].backward), "3f 3m 3l 2f 2m 2l 1f 1m 1l 0f 0m 0l");
  EXPECT_TRUE(segments_of({}, {}).empty());
}

TEST(Segments, OnePartsLastStageStandsBeforeTheOthersCompute) {
  const std::vector<Segment> segments = segments_of(layers(1), {.sub_batches = 2});
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(text(segments[0].forward, 2), "0fa 0ma 0la 0fb 0mb 0lb 1fa 1ma 1la 1fb 1mb 1lb 2fa 2fb");
}

TEST(Segments, GathersStartBeforeTheOtherPartsLastStage) {
  const std::vector<Segment> segments = segments_of(layers(1), {.sub_batches = 2, .gathers_rows = true});
  EXPECT_EQ(text(segments[0].forward, 2), "0fa 0ma 0fb 0la 0mb 1fa 0lb 1ma 1fb 1la 1mb 2fa 1lb 2fb");
  // Backward one gather hides behind the last weight gradient of the sublayer before.
  EXPECT_EQ(text(segments[0].backward), "1f 1m 0f 1l 0m 0l");
}

TEST(Segments, OfOnePartGatherInTheOrderOfTheirSublayers) {
  const std::vector<Segment> segments = segments_of(layers(1), {.sub_batches = 1, .gathers_rows = true});
  EXPECT_EQ(text(segments[0].forward), "0f 0m 0l 1f 1m 1l 2f");
  EXPECT_EQ(text(segments[0].backward), "1f 1m 0f 1l 0m 0l");
}

TEST(Segments, WholeLayersAreOneEachAndTakeTheSeamBeforeThem) {
  const std::vector<Segment> segments = segments_of(layers(2, true, true), {});
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_TRUE(segments[0].captured && segments[1].captured);
  EXPECT_EQ(text(segments[0].forward), "0f 0m 0l 1f 1m 1l");
  EXPECT_EQ(text(segments[1].forward), "2f 2m 2l 3f 3m 3l 4f");
  EXPECT_EQ(text(segments[1].backward), "3f 3m 3l 2f 2m 2l");
  EXPECT_EQ(text(segments[0].backward), "1f 1m 1l 0f 0m 0l");
}

TEST(Segments, TheLastPartsLastStageMovesIntoTheNextCapturedOne) {
  std::vector<Segment> segments = segments_of(layers(2, true, true), {.sub_batches = 2});
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(text(segments[0].forward, 2), "0fa 0ma 0la 0fb 0mb 0lb 1fa 1ma 1la 1fb 1mb");
  EXPECT_EQ(text(segments[1].forward, 2), "1lb 2fa 2ma 2la 2fb 2mb 2lb 3fa 3ma 3la 3fb 3mb 3lb 4fa 4fb");
  segments = segments_of(layers(2, true, true), {.sub_batches = 2, .gathers_rows = true});
  EXPECT_EQ(text(segments[0].forward, 2), "0fa 0ma 0fb 0la 0mb 1fa 0lb 1ma 1fb 1la 1mb");
  EXPECT_EQ(text(segments[1].forward, 2), "2fa 1lb 2ma 2fb 2la 2mb 3fa 2lb 3ma 3fb 3la 3mb 4fa 3lb 4fb");
}

TEST(Segments, ACapturedHalfOfEachLayerCutsItsLayerInTwo) {
  for (const bool first : {true, false}) {
    const std::vector<Segment> segments = segments_of(layers(2, first, !first), {.sub_batches = 2});
    ASSERT_EQ(segments.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(segments[i].begin, i);
      EXPECT_EQ(segments[i].end, i + 1);
      EXPECT_EQ(segments[i].captured, (i % 2 == 0) == first);
    }
    EXPECT_EQ(text(segments[1].forward, 2), "1fa 1ma 1la 1fb 1mb 1lb");
    EXPECT_EQ(text(segments[3].forward, 2), "3fa 3ma 3la 3fb 3mb 3lb 4fa 4fb");
    EXPECT_EQ(text(segments[2].backward), "2f 2m 2l");
  }
}

TEST(Segments, NormsAreComputedAgainBeforeTheirSublayersBackward) {
  EXPECT_EQ(text(segments_of(layers(1), {}, {.norms = true})[0].backward), "1n 1f 1m 1l 0n 0f 0m 0l");
  // A gather that is started early reads them early.
  EXPECT_EQ(text(segments_of(layers(1), {.sub_batches = 1, .gathers_rows = true}, {.norms = true})[0].backward),
            "1n 1f 1m 0n 0f 1l 0m 0l");
}

TEST(Segments, ARangePassesForwardAgainBeforeItsLastSublayersBackward) {
  nn::Again again{.ranges = {{0, 2}, {2, 4}}, .norms = false};
  std::vector<Segment> segments = nn::make_segments(layers(2), {}, again);
  EXPECT_EQ(text(segments[0].forward), "0f 0m 0l 1f 1m 1l 2f 2m 2l 3f 3m 3l 4f");
  EXPECT_EQ(text(segments[0].backward), "3r 3f 3m 3l 2f 2m 2l 1r 1f 1m 1l 0f 0m 0l");
  EXPECT_EQ(text(again.ranges[0].forward), "0f 0m 0l 1f 1m");
  EXPECT_EQ(text(again.ranges[1].forward), "2f 2m 2l 3f 3m");
  segments = nn::make_segments(layers(2), {.sub_batches = 2}, again);
  EXPECT_EQ(text(again.ranges[1].forward, 2), "2fa 2ma 2la 2fb 2mb 2lb 3fa 3ma 3fb 3mb");
  segments = nn::make_segments(layers(2), {.sub_batches = 2, .gathers_rows = true}, again);
  EXPECT_EQ(text(again.ranges[1].forward, 2), "2fa 2ma 2fb 2la 2mb 3fa 2lb 3ma 3fb 3mb");
  EXPECT_EQ(text(segments[0].backward), "3r 3f 3m 2f 3l 2m 1r 1f 2l 1m 0f 1l 0m 0l");
}

TEST(Segments, ARangeOverSeveralSegmentsStandsInTheLast) {
  nn::Again again{.ranges = {{0, 4}}, .norms = true};
  const std::vector<Segment> segments = nn::make_segments(layers(3, true, true), {}, again);
  EXPECT_EQ(text(segments[2].backward), "5n 5f 5m 5l 4n 4f 4m 4l");
  EXPECT_EQ(text(segments[1].backward), "3r 3f 3m 3l 2f 2m 2l");
  EXPECT_EQ(text(segments[0].backward), "1f 1m 1l 0f 0m 0l");
  EXPECT_EQ(text(again.ranges[0].forward), "0f 0m 0l 1f 1m 1l 2f 2m 2l 3f 3m");
}

TEST(Segments, MiddleStagesStayTogether) {
  const std::vector<StageCounts> sublayers{{.layer = 0, .forward = 3}, {.layer = 0, .forward = 5, .backward = 4}};
  const std::vector<Segment> segments = segments_of(sublayers, {.sub_batches = 2});
  std::vector<int> stages, backward;
  for (const nn::Turn& turn : segments[0].forward)
    if (turn.sublayer == 1) stages.push_back(turn.stage * 10 + turn.sub_batch);
  EXPECT_EQ(stages, (std::vector<int>{0, 10, 20, 30, 40, 1, 11, 21, 31, 41}));
  for (const nn::Turn& turn : segments[0].backward)
    backward.push_back(static_cast<int>(turn.sublayer) * 10 + turn.stage);
  EXPECT_EQ(backward, (std::vector<int>{10, 11, 12, 13, 0, 1, 2}));
}

}  // namespace
}  // namespace megalith
