#include "megalith/nn/segments.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

// The orders of passes, written out: sublayer, stage, and of several sub-microbatches which.
// Forward: s seam, n norm, g gather, f first GEMM, l last GEMM; r route, p preprocess, d dispatch, e experts, c
// combine. Backward: N norm recomputed, R range recomputed, g gather, l and L input and weight gradient of the last
// GEMM, f and F of the first; c, e, d, p, r as forward; s seam, . done.
namespace megalith {
namespace {

using nn::BackwardStage;
using nn::Edge;
using nn::ForwardStage;
using nn::Overlap;
using nn::Segment;
using nn::SublayerStages;

constexpr ForwardStage kForward[] = {ForwardStage::gather, ForwardStage::first_gemm, ForwardStage::last_gemm};
constexpr BackwardStage kBackward[] = {BackwardStage::gather, BackwardStage::last_input_grad,
                                       BackwardStage::last_weight_grad, BackwardStage::first_input_grad,
                                       BackwardStage::first_weight_grad};
constexpr ForwardStage kMoeForward[] = {ForwardStage::gather,   ForwardStage::route,   ForwardStage::preprocess,
                                        ForwardStage::dispatch, ForwardStage::experts, ForwardStage::combine};
constexpr BackwardStage kMoeBackward[] = {BackwardStage::gather,   BackwardStage::combine,    BackwardStage::experts,
                                          BackwardStage::dispatch, BackwardStage::preprocess, BackwardStage::route};

std::optional<ForwardStage> captured_end(bool captured) {
  return captured ? std::nullopt : std::optional(ForwardStage::seam);
}

/// Two dense sublayers per layer.
std::vector<SublayerStages> layers(Index count, bool captures_first = false, bool captures_second = false) {
  std::vector<SublayerStages> all;
  for (Index layer = 0; layer < count; ++layer) {
    all.push_back({layer, kForward, kBackward, captured_end(captures_first)});
    all.push_back({layer, kForward, kBackward, captured_end(captures_second)});
  }
  return all;
}

/// Attention and experts per layer.
std::vector<SublayerStages> moe_layers(Index count, bool captures_attention, std::optional<ForwardStage> end) {
  std::vector<SublayerStages> all;
  for (Index layer = 0; layer < count; ++layer) {
    all.push_back({layer, kForward, kBackward, captured_end(captures_attention)});
    all.push_back({layer, kMoeForward, kMoeBackward, end});
  }
  return all;
}

constexpr Overlap kTwoSubBatches{.sub_batches = 2, .reduces = true};
constexpr Overlap kSequenceParallel{.gathers_rows = true, .reduces = true};
constexpr Overlap kSequenceParallelSubBatches{.sub_batches = 2, .gathers_rows = true, .reduces = true};

std::vector<Segment> segments_of(const std::vector<SublayerStages>& sublayers, const Overlap& overlap,
                                 nn::Recomputation recomputation = {}) {
  return nn::make_segments(sublayers, overlap, recomputation);
}

std::string text(std::span<const nn::ForwardTurn> turns, int sub_batches = 1) {
  std::string all;
  for (const nn::ForwardTurn& turn : turns) {
    const char* sub_batch = sub_batches == 1 ? "" : turn.sub_batch == 0 ? "a" : "b";
    all += str(all.empty() ? "" : " ", turn.sublayer, "sngflrpdec"[static_cast<int>(turn.stage)], sub_batch);
  }
  return all;
}
std::string text(std::span<const nn::BackwardTurn> turns) {
  std::string all;
  for (const nn::BackwardTurn& turn : turns)
    all += str(all.empty() ? "" : " ", turn.sublayer, "NRglLfFcedprs."[static_cast<int>(turn.stage)]);
  return all;
}

TEST(Segments, WithoutCaptureThereIsOneThatEndsWithTheClosingSeam) {
  const std::vector<Segment> segments = segments_of(layers(2), {});
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].begin, Edge{0});
  EXPECT_EQ(segments[0].end, Edge{4});
  EXPECT_FALSE(segments[0].captured);
  EXPECT_EQ(text(segments[0].forward), "0s 0g 0f 0l 1s 1g 1f 1l 2s 2g 2f 2l 3s 3g 3f 3l 4s");
  EXPECT_EQ(text(segments[0].backward),
            "3g 3l 3L 3f 3F 3s 3. 2g 2l 2L 2f 2F 2s 2. 1g 1l 1L 1f 1F 1s 1. 0g 0l 0L 0f 0F 0s 0.");
  EXPECT_TRUE(segments_of({}, {}).empty());
}

TEST(Segments, TheLastWeightGradientOverlapsWithTheReductionOfTheInputGradient) {
  EXPECT_EQ(text(segments_of(layers(1), {.reduces = true})[0].backward), "1g 1l 1f 1F 1L 1s 1. 0g 0l 0f 0F 0L 0s 0.");
}

TEST(Segments, OneSubMicrobatchsLastStageStandsBeforeTheOthersCompute) {
  const std::vector<Segment> segments = segments_of(layers(1), kTwoSubBatches);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(text(segments[0].forward, 2), "0sa 0ga 0fa 0la 0sb 0gb 0fb 0lb 1sa 1ga 1fa 1la 1sb 1gb 1fb 1lb 2sa 2sb");
}

TEST(Segments, GathersStartBeforeTheOtherSubMicrobatchsLastStage) {
  const std::vector<Segment> segments = segments_of(layers(1), kSequenceParallelSubBatches);
  EXPECT_EQ(text(segments[0].forward, 2), "0sa 0ga 0fa 0sb 0gb 0la 0fb 1sa 1ga 0lb 1fa 1sb 1gb 1la 1fb 2sa 1lb 2sb");
  // Backward a gather overlaps with the last weight gradient of the sublayer before.
  EXPECT_EQ(text(segments[0].backward), "1g 1l 1f 1F 1s 0g 1L 1. 0l 0f 0F 0s 0L 0.");
}

TEST(Segments, OfOneSubMicrobatchGatherInTheOrderOfTheirSublayers) {
  const std::vector<Segment> segments = segments_of(layers(1), kSequenceParallel);
  EXPECT_EQ(text(segments[0].forward), "0s 0g 0f 0l 1s 1g 1f 1l 2s");
  EXPECT_EQ(text(segments[0].backward), "1g 1l 1f 1F 1s 0g 1L 1. 0l 0f 0F 0s 0L 0.");
}

TEST(Segments, WholeLayersAreOneEachAndTakeTheSeamBeforeThem) {
  const std::vector<Segment> segments = segments_of(layers(2, true, true), {});
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_TRUE(segments[0].captured && segments[1].captured);
  EXPECT_EQ(text(segments[0].forward), "0s 0g 0f 0l 1s 1g 1f 1l");
  EXPECT_EQ(text(segments[1].forward), "2s 2g 2f 2l 3s 3g 3f 3l 4s");
  EXPECT_EQ(text(segments[1].backward), "3g 3l 3L 3f 3F 3s 3. 2g 2l 2L 2f 2F 2s 2.");
  EXPECT_EQ(text(segments[0].backward), "1g 1l 1L 1f 1F 1s 1. 0g 0l 0L 0f 0F 0s 0.");
}

TEST(Segments, TheLastSubMicrobatchsLastStageMovesIntoTheNextCapturedOne) {
  std::vector<Segment> segments = segments_of(layers(2, true, true), kTwoSubBatches);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(text(segments[0].forward, 2), "0sa 0ga 0fa 0la 0sb 0gb 0fb 0lb 1sa 1ga 1fa 1la 1sb 1gb 1fb");
  EXPECT_EQ(text(segments[1].forward, 2),
            "1lb 2sa 2ga 2fa 2la 2sb 2gb 2fb 2lb 3sa 3ga 3fa 3la 3sb 3gb 3fb 3lb 4sa 4sb");
  segments = segments_of(layers(2, true, true), kSequenceParallelSubBatches);
  EXPECT_EQ(text(segments[0].forward, 2), "0sa 0ga 0fa 0sb 0gb 0la 0fb 1sa 1ga 0lb 1fa 1sb 1gb 1la 1fb");
  EXPECT_EQ(text(segments[1].forward, 2),
            "2sa 2ga 1lb 2fa 2sb 2gb 2la 2fb 3sa 3ga 2lb 3fa 3sb 3gb 3la 3fb 4sa 3lb 4sb");
  // Weight gradients stay in their segment.
  EXPECT_EQ(text(segments[1].backward), "3g 3l 3f 3F 3s 2g 3L 3. 2l 2f 2F 2s 2L 2.");
}

TEST(Segments, ACapturedHalfOfEachLayerCutsItsLayerInTwo) {
  for (const bool first : {true, false}) {
    const std::vector<Segment> segments = segments_of(layers(2, first, !first), kTwoSubBatches);
    ASSERT_EQ(segments.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(segments[i].begin, Edge{i});
      EXPECT_EQ(segments[i].end, Edge{i + 1});
      EXPECT_EQ(segments[i].captured, (i % 2 == 0) == first);
    }
    EXPECT_EQ(text(segments[1].forward, 2), "1sa 1ga 1fa 1la 1sb 1gb 1fb 1lb");
    EXPECT_EQ(text(segments[3].forward, 2), "3sa 3ga 3fa 3la 3sb 3gb 3fb 3lb 4sa 4sb");
    EXPECT_EQ(text(segments[2].backward), "2g 2l 2f 2F 2L 2s 2.");
  }
}

TEST(Segments, BackwardOfExpertsMirrorsTheirForwardStages) {
  const std::vector<Segment> segments = segments_of(moe_layers(1, false, ForwardStage::seam), kSequenceParallel);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(text(segments[0].forward), "0s 0g 0f 0l 1s 1g 1r 1p 1d 1e 1c 2s");
  EXPECT_EQ(text(segments[0].backward), "1g 1c 1e 1d 1p 1r 1s 0g 1. 0l 0f 0F 0s 0L 0.");
}

TEST(Segments, CaptureThatEndsInsideExpertsCutsThem) {
  struct Case {
    bool attention;
    ForwardStage end;
    const char *captured, *rest, *rest_backward, *captured_backward;
  };
  const Case cases[] = {{true, ForwardStage::preprocess, "2s 2g 2f 2l 3s 3g 3r", "3p 3d 3e 3c 4s", "3g 3c 3e 3d 3p",
                         "3r 3s 3. 2g 2l 2L 2f 2F 2s 2."},
                        {true, ForwardStage::dispatch, "2s 2g 2f 2l 3s 3g 3r 3p", "3d 3e 3c 4s", "3g 3c 3e 3d",
                         "3p 3r 3s 3. 2g 2l 2L 2f 2F 2s 2."},
                        {false, ForwardStage::preprocess, "3s 3g 3r", "3p 3d 3e 3c 4s", "3g 3c 3e 3d 3p", "3r 3s 3."},
                        {false, ForwardStage::dispatch, "3s 3g 3r 3p", "3d 3e 3c 4s", "3g 3c 3e 3d", "3p 3r 3s 3."}};
  for (const Case& c : cases) {
    const std::vector<Segment> segments = segments_of(moe_layers(2, c.attention, c.end), {});
    ASSERT_EQ(segments.size(), c.attention ? 4u : 6u);
    const Segment &captured = segments[segments.size() - 2], &rest = segments.back();
    EXPECT_TRUE(captured.captured);
    EXPECT_FALSE(rest.captured);
    EXPECT_EQ(captured.begin, Edge{c.attention ? 2u : 3u});
    EXPECT_EQ(captured.end, (Edge{3, c.end}));
    EXPECT_EQ(rest.begin, (Edge{3, c.end}));
    EXPECT_EQ(rest.end, Edge{4});
    EXPECT_EQ(text(captured.forward), c.captured);
    EXPECT_EQ(text(rest.forward), c.rest);
    EXPECT_EQ(text(rest.backward), c.rest_backward);
    EXPECT_EQ(text(captured.backward), c.captured_backward);
  }
  // Recomputed norms stand before the first stage of backward, which the rest holds.
  const std::vector<Segment> recomputed =
      segments_of(moe_layers(1, true, ForwardStage::preprocess), {}, {.norms = true});
  EXPECT_EQ(text(recomputed[1].backward), "1N 1g 1c 1e 1d 1p");
  EXPECT_EQ(text(recomputed[0].backward), "1r 1s 1. 0N 0g 0l 0L 0f 0F 0s 0.");
  EXPECT_THROW(segments_of(moe_layers(1, true, ForwardStage::preprocess), kTwoSubBatches), InternalError);
}

TEST(Segments, NormsAreComputedAgainBeforeTheirSublayersBackward) {
  EXPECT_EQ(text(segments_of(layers(1), {}, {.norms = true})[0].backward),
            "1N 1g 1l 1L 1f 1F 1s 1. 0N 0g 0l 0L 0f 0F 0s 0.");
  // A gather that is started early reads them early.
  EXPECT_EQ(text(segments_of(layers(1), kSequenceParallel, {.norms = true})[0].backward),
            "1N 1g 1l 1f 1F 1s 0N 0g 1L 1. 0l 0f 0F 0s 0L 0.");
}

TEST(Segments, ARangePassesForwardAgainBeforeItsLastSublayersBackward) {
  nn::Recomputation recomputation{.ranges = {{0, 2}, {2, 4}}, .norms = false};
  std::vector<Segment> segments = nn::make_segments(layers(2), {}, recomputation);
  EXPECT_EQ(text(segments[0].forward), "0s 0g 0f 0l 1s 1g 1f 1l 2s 2g 2f 2l 3s 3g 3f 3l 4s");
  EXPECT_EQ(text(segments[0].backward),
            "3R 3g 3l 3L 3f 3F 3s 3. 2g 2l 2L 2f 2F 2s 2. 1R 1g 1l 1L 1f 1F 1s 1. 0g 0l 0L 0f 0F 0s 0.");
  EXPECT_EQ(text(recomputation.ranges[0].forward), "0n 0g 0f 0l 1s 1g 1f");
  EXPECT_EQ(text(recomputation.ranges[1].forward), "2n 2g 2f 2l 3s 3g 3f");
  nn::make_segments(layers(2), kTwoSubBatches, recomputation);
  EXPECT_EQ(text(recomputation.ranges[1].forward, 2), "2na 2ga 2fa 2la 2nb 2gb 2fb 2lb 3sa 3ga 3fa 3sb 3gb 3fb");
  segments = nn::make_segments(layers(2), kSequenceParallelSubBatches, recomputation);
  EXPECT_EQ(text(recomputation.ranges[1].forward, 2), "2na 2ga 2fa 2nb 2gb 2la 2fb 3sa 3ga 2lb 3fa 3sb 3gb 3fb");
  EXPECT_EQ(text(segments[0].backward),
            "3R 3g 3l 3f 3F 3s 2g 3L 3. 2l 2f 2F 2s 1R 1g 2L 2. 1l 1f 1F 1s 0g 1L 1. 0l 0f 0F 0s 0L 0.");
}

TEST(Segments, ARangeOverSeveralSegmentsStandsInTheLast) {
  nn::Recomputation recomputation{.ranges = {{0, 4}}, .norms = true};
  const std::vector<Segment> segments = nn::make_segments(layers(3, true, true), {}, recomputation);
  EXPECT_EQ(text(segments[2].backward), "5N 5g 5l 5L 5f 5F 5s 5. 4N 4g 4l 4L 4f 4F 4s 4.");
  EXPECT_EQ(text(segments[1].backward), "3R 3g 3l 3L 3f 3F 3s 3. 2g 2l 2L 2f 2F 2s 2.");
  EXPECT_EQ(text(segments[0].backward), "1g 1l 1L 1f 1F 1s 1. 0g 0l 0L 0f 0F 0s 0.");
  EXPECT_EQ(text(recomputation.ranges[0].forward), "0n 0g 0f 0l 1s 1g 1f 1l 2s 2g 2f 2l 3s 3g 3f");
}

TEST(Segments, MiddleStagesStayTogether) {
  const std::vector<Segment> segments = segments_of(moe_layers(1, false, ForwardStage::seam), kTwoSubBatches);
  EXPECT_EQ(text(segments[0].forward, 2),
            "0sa 0ga 0fa 0la 0sb 0gb 0fb 0lb 1sa 1ga 1ra 1pa 1da 1ea 1ca 1sb 1gb 1rb 1pb 1db 1eb 1cb 2sa 2sb");
}

}  // namespace
}  // namespace megalith
