#include "megalith/capture/layer_graphs.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/capture/vectors.h"

namespace megalith::capture {
namespace {

using nlohmann::json;
using pipeline::Act;
using pipeline::SlotPolicy;

const pipeline::ScheduleShape kShapes[] = {{1, 1, 8}, {2, 1, 8}, {4, 1, 8}, {2, 2, 8}, {4, 2, 8}, {4, 4, 8}, {3, 1, 2}};

GraphCounts counts_of(const RankLayers& layers, GraphsPer per) {
  return count_graphs(layers, pipeline::lower(layers.shape, layers.stage), per);
}

std::vector<std::string> sequence_of(const std::vector<CaptureStep>& steps) {
  std::vector<std::string> sequence;
  for (const CaptureStep& step : steps)
    sequence.push_back((step.pass.act == Act::forward ? "F" : "B") + std::to_string(step.index));
  return sequence;
}

TEST(LayerGraphs, CountsOfTheVectors) {
  for (const json& entry : graph_vectors().at("graph_counts")) {
    const pipeline::ScheduleShape shape = shape_of(entry);
    const int layers = entry.at("captured_layers_on_rank");
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      const GraphCounts counts = counts_of(alike(shape, stage, layers / shape.num_chunks), GraphsPer::microbatch);
      EXPECT_EQ(counts.graphs, entry.at("graphs")) << entry;
      EXPECT_EQ(counts.launches_per_step, entry.at("graph_launches_per_iteration")) << entry;
    }
  }
}

TEST(LayerGraphs, GraphsPerSlotFollowTheMicrobatchesInFlight) {
  for (const int pp : {1, 2, 4}) {
    for (int stage = 0; stage < pp; ++stage) {
      for (const int microbatches : {16, 64, 256}) {
        const RankLayers layers = alike({pp, 1, microbatches}, stage, 3);
        const GraphCounts counts = counts_of(layers, GraphsPer::slot);
        EXPECT_EQ(counts.graphs, 2 * 3 * peak_in_flight(layers.shape, stage));
        EXPECT_EQ(counts.launches_per_step, 2 * 3 * microbatches);
      }
    }
  }
}

TEST(LayerGraphs, GraphsPerSlotOfChunksAreThoseOfTheSlotsThatTheyUse) {
  for (const int microbatches : {16, 64, 256}) {
    const RankLayers layers{{4, 2, microbatches}, 0, {3, 1}};
    EXPECT_EQ(pairs_per_layer(layers, pipeline::lower(layers.shape, 0), GraphsPer::slot), (std::vector<int>{8, 4}));
    EXPECT_EQ(counts_of(layers, GraphsPer::slot).graphs, 2 * (3 * 8 + 1 * 4));
  }
  const RankLayers layers{{4, 2, 64}, 0, {3, 1}};
  const auto shared = pipeline::lower(layers.shape, 0, {SlotPolicy::shared});
  EXPECT_EQ(pairs_per_layer(layers, shared, GraphsPer::slot), (std::vector<int>{11, 11}));
  EXPECT_EQ(counts_of(alike({1, 1, 64}, 0, 5), GraphsPer::slot).graphs, 10);
}

TEST(LayerGraphs, LazyWarmupPassesOfTheVectors) {
  for (const json& entry : graph_vectors().at("capture_warmup_iterations")) {
    EXPECT_EQ(lazy_warmup_passes(entry.at("warmup_steps"), entry.at("microbatches"), entry.at("captured_microbatches")),
              entry.at("capture_warmup_iters"))
        << entry;
  }
}

TEST(LayerGraphs, LivenessAndSequenceOfTheVectors) {
  int sequences = 0;
  for (const json& entry : graph_vectors().at("capture_liveness")) {
    const RankLayers layers{shape_of(entry), entry.at("rank"), entry.at("captured_layers_per_chunk")};
    const std::vector<CaptureStep> steps = capture_steps(layers);
    const Liveness liveness = peak_liveness(steps);
    EXPECT_EQ(liveness.outputs, entry.at("peak_live_output_sets")) << entry;
    EXPECT_EQ(liveness.outputs, entry.at("peak_live_saved_sets")) << entry;
    EXPECT_EQ(liveness.input_grads, entry.at("peak_live_grad_inputs")) << entry;
    EXPECT_EQ(liveness.held_input_grads, entry.at("grad_inputs_held_at_end")) << entry;
    if (!entry.contains("capture_sequence")) continue;
    EXPECT_EQ(sequence_of(steps), entry.at("capture_sequence").get<std::vector<std::string>>()) << entry;
    ++sequences;
  }
  EXPECT_EQ(sequences, 7);
}

TEST(LayerGraphs, PeaksDoNotGrowWithTheMicrobatches) {
  for (const pipeline::ScheduleShape& shape : kShapes) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      for (const int microbatches : {16, 64, 256}) {
        const RankLayers layers = alike({shape.num_stages, shape.num_chunks, microbatches}, stage, 2);
        const Liveness liveness = peak_liveness(capture_steps(layers));
        EXPECT_EQ(liveness.outputs, 2 * peak_in_flight(layers.shape, stage));
        EXPECT_EQ(liveness.input_grads, shape.num_stages == 1 ? 2 : 3);
      }
    }
  }
}

/// Number of the last step that reads, and of the step that releases.
struct Life {
  int last_read = -1;
  int released = -1;
};

TEST(LayerGraphs, NothingIsReleasedBeforeItsLastReader) {
  for (const pipeline::ScheduleShape& shape : kShapes) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      RankLayers layers = alike(shape, stage, 3);
      layers.per_chunk.front() = 2;
      const std::vector<CaptureStep> steps = capture_steps(layers);
      std::map<Index, Life> outputs, grads;
      int now = 0;
      for (const CaptureStep& step : steps) {
        if (step.pass.act == Act::backward) {
          outputs[step.index].last_read = now;
          LayerPass above = step.pass;
          ++above.layer;
          if (above.layer < layers.per_chunk.at(static_cast<std::size_t>(above.chunk)))
            grads[flat_index(layers, above)].last_read = now;
        }
        for (const Index index : step.released_outputs) outputs.at(index).released = now;
        for (const Index index : step.released_input_grads) grads[index].released = now;
        ++now;
      }
      for (const auto& [index, life] : outputs) EXPECT_EQ(life.released, life.last_read) << index;
      // A layer's input gradient goes with its reader; that of a chunk's first layer with the end of the next chunk
      // backward, and the last of them stays.
      const CaptureStep* sent = nullptr;
      now = 0;
      for (const CaptureStep& step : steps) {
        if (step.pass.act == Act::backward && step.pass.layer == 0) {
          if (sent != nullptr) {
            EXPECT_EQ(grads.at(sent->index).released, now);
          }
          sent = &step;
        }
        ++now;
      }
      for (const auto& [index, life] : grads) {
        if (life.last_read >= 0) {
          EXPECT_EQ(life.released, life.last_read) << index;
        }
      }
      EXPECT_FALSE(grads.contains(sent->index));
    }
  }
}

TEST(LayerGraphs, LivenessSeesWrongReleases) {
  const RankLayers layers = alike({2, 1, 4}, 0, 2);
  const auto with = [&](auto&& change) {
    std::vector<CaptureStep> steps = capture_steps(layers);
    change(steps);
    return steps;
  };
  const Liveness right = peak_liveness(capture_steps(layers));
  const auto late = with([](std::vector<CaptureStep>& steps) {
    const auto first = std::find_if(steps.begin(), steps.end(), [](auto& s) { return !s.released_outputs.empty(); });
    steps.back().released_outputs.push_back(first->released_outputs[0]);
    first->released_outputs.clear();
  });
  EXPECT_EQ(peak_liveness(late).outputs, right.outputs + 1);
  const auto twice = with([](std::vector<CaptureStep>& steps) {
    steps.back().released_outputs.push_back(steps.back().released_outputs[0]);
  });
  EXPECT_THROW(peak_liveness(twice), InternalError);
  const auto early = with([](std::vector<CaptureStep>& steps) { steps[0].released_input_grads.push_back(0); });
  EXPECT_THROW(peak_liveness(early), InternalError);
  const auto made_twice = with([](std::vector<CaptureStep>& steps) {
    steps.push_back(steps[0]);
    steps.push_back(steps[0]);
  });
  EXPECT_THROW(peak_liveness(made_twice), InternalError);
}

TEST(LayerGraphs, FlatIndicesCountChunksThenMicrobatchesThenLayers) {
  const RankLayers layers{{2, 3, 4}, 1, {2, 0, 3}};
  EXPECT_EQ(flat_index(layers, {Act::forward, 0, 0, 1}), 1);
  EXPECT_EQ(flat_index(layers, {Act::forward, 0, 3, 1}), 7);
  EXPECT_EQ(flat_index(layers, {Act::backward, 2, 0, 0}), 8);
  EXPECT_EQ(flat_index(layers, {Act::forward, 2, 3, 2}), 19);
  std::vector<Index> forwards;
  for (const CaptureStep& step : capture_steps(layers)) {
    if (step.pass.act == Act::forward) forwards.push_back(step.index);
  }
  std::sort(forwards.begin(), forwards.end());
  ASSERT_EQ(forwards.size(), 20U);
  for (std::size_t i = 0; i < forwards.size(); ++i) EXPECT_EQ(forwards[i], static_cast<Index>(i));
}

}  // namespace
}  // namespace megalith::capture
