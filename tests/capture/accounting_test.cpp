#include "megalith/capture/accounting.h"

#include <gtest/gtest.h>

#include "tests/capture/vectors.h"

namespace megalith::capture {
namespace {

using nlohmann::json;

template <class T>
std::vector<std::vector<T>> for_all(const RankLayers& layers, const T& value) {
  std::vector<std::vector<T>> all;
  for (const int count : layers.per_chunk) all.emplace_back(static_cast<std::size_t>(count), value);
  return all;
}

OwnedBuffers owned(const RankLayers& layers, const LayerSizes& sizes, const nn::LayerEdges& edges) {
  return owned_buffers(layers, for_all(layers, sizes), for_all(layers, edges));
}

constexpr LayerSizes kDense{.tokens = 64, .hidden_size = 32, .activation_bytes = 2};
constexpr nn::LayerEdges kWhole{{0}, {2}}, kAttention{{0}, {1}}, kMlp{{1}, {2}},
    kRouter{{0}, {1, nn::ForwardStage::preprocess}}, kPreprocess{{0}, {1, nn::ForwardStage::dispatch}};

TEST(Accounting, BytesOfTheVectors) {
  for (const json& entry : graph_vectors().at("accounting_examples")) {
    const pipeline::ScheduleShape shape = shape_of(entry);
    const Index tokens = entry.at("tokens_per_microbatch_on_rank"), top_k = entry.at("topk");
    const LayerSizes sizes{.tokens = tokens,
                           .hidden_size = entry.at("hidden"),
                           .routed_tokens = tokens,
                           .num_experts = entry.at("experts"),
                           .top_k = top_k,
                           .permuted_rows = tokens * top_k,
                           .shared_experts = entry.at("shared_expert")};
    ScopeSet scopes{Scope::attn, Scope::moe_router};  // graphs begin with their layer: one input
    if (entry.at("scope") == "moe_preprocess") scopes.add(Scope::moe_preprocess);
    const nn::LayerEdges edges = edges_of(scopes, {.moe = true});
    EXPECT_EQ(input_bytes(sizes), entry.at("input_bytes_per_layer"));
    EXPECT_EQ(boundary_bytes(edges, sizes), entry.at("boundary_bytes_per_layer"));
    for (const json& rank : entry.at("ranks")) {
      const OwnedBuffers buffers = owned(alike(shape, rank.at("rank"), entry.at("layers_per_chunk")), sizes, edges);
      EXPECT_EQ(buffers.static_inputs, rank.at("static_input_sets")) << rank;
      EXPECT_EQ(buffers.static_input_bytes, rank.at("static_input_bytes")) << rank;
      EXPECT_EQ(buffers.unshared_input_bytes, rank.at("static_input_bytes_without_reuse")) << rank;
      EXPECT_EQ(buffers.boundary_bytes, rank.at("boundary_bytes")) << rank;
      EXPECT_EQ(peak_in_flight(shape, rank.at("rank")), rank.at("in_flight_chunks")) << rank;
    }
  }
}

TEST(Accounting, OptionalPartsOfTheBoundary) {
  LayerSizes s{.tokens = 10, .hidden_size = 4, .routed_tokens = 10, .num_experts = 6, .top_k = 2, .permuted_rows = 30};
  EXPECT_EQ(boundary_bytes(kRouter, s), 2 * 80 + 10 * 6 * 4 + 10 * 6);
  EXPECT_EQ(boundary_bytes(kPreprocess, s), 30 * (4 * 2 + 4) + 80 + 10 * 2 * 4 + 10 * 6);
  const Index before = boundary_bytes(kPreprocess, s);
  s.shared_experts = true;
  EXPECT_EQ(boundary_bytes(kPreprocess, s), before + 80);
  EXPECT_EQ(boundary_bytes(kRouter, s), 3 * 80 + 10 * 6 * 4 + 10 * 6);
  s.keeps_moe_residual = true;
  EXPECT_EQ(boundary_bytes(kPreprocess, s), before + 2 * 80);
  EXPECT_EQ(boundary_bytes(kAttention, s), 80);
  EXPECT_EQ(boundary_bytes(kWhole, s), 80);
}

TEST(Accounting, BytesFollowWhatIsInFlightAndNotTheMicrobatches) {
  for (const auto& [pp, chunks] : {std::pair{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
    for (int stage = 0; stage < pp; ++stage) {
      for (const int microbatches : {16, 64, 256}) {
        const RankLayers layers = alike({pp, chunks, microbatches}, stage, 3);
        const OwnedBuffers buffers = owned(layers, kDense, kWhole);
        const Index in_flight = peak_in_flight(layers.shape, stage);
        EXPECT_EQ(buffers.static_inputs, in_flight * 3);
        EXPECT_EQ(buffers.static_input_bytes, in_flight * 3 * 64 * 32 * 2);
        EXPECT_EQ(buffers.boundary_bytes, in_flight * 3 * 64 * 32 * 2);
        EXPECT_EQ(buffers.output_grad_bytes, 64 * 32 * 2);
        EXPECT_EQ(buffers.unshared_input_bytes, (pp == 1 ? 1 : microbatches) * chunks * 3 * 64 * 32 * 2);
      }
    }
  }
}

TEST(Accounting, AGraphThatBeginsWithASumHasASecondInputThatAllShare) {
  for (const bool below : {false, true}) {
    EXPECT_EQ(begins_with_sum(kWhole, below), below);
    EXPECT_EQ(begins_with_sum(kAttention, below), below);
    EXPECT_TRUE(begins_with_sum(kMlp, below));
    EXPECT_TRUE(begins_with_sum({{1}, {1, nn::ForwardStage::preprocess}}, below));
    EXPECT_FALSE(begins_with_sum({}, below));
  }
  for (const int microbatches : {16, 64, 256}) {
    for (int stage = 0; stage < 4; ++stage) {
      const RankLayers layers = alike({4, 1, microbatches}, stage, 3);
      const OwnedBuffers whole = owned(layers, kDense, kWhole);
      EXPECT_EQ(whole.second_input_bytes, input_bytes(kDense));
      EXPECT_EQ(owned(layers, kDense, kAttention), whole);
      EXPECT_EQ(owned(layers, kDense, kMlp), whole);
      EXPECT_EQ(owned(layers, kDense, edges_of({Scope::attn, Scope::mlp}, {})), whole);
    }
  }
  const RankLayers alone = alike({4, 1, 16}, 1, 1);
  EXPECT_EQ(owned(alone, kDense, kWhole).second_input_bytes, 0);
  EXPECT_EQ(owned(alone, kDense, kMlp).second_input_bytes, input_bytes(kDense));
}

TEST(Accounting, LayersOfTwoSizesShareNothing) {
  const RankLayers layers{{1, 1, 4}, 0, {2}};
  LayerSizes wide = kDense;
  wide.hidden_size *= 2;
  const std::vector<std::vector<LayerSizes>> sizes{{kDense, wide}};
  const OwnedBuffers buffers = owned_buffers(layers, sizes, for_all(layers, kWhole));
  EXPECT_EQ(buffers.static_inputs, 2);
  EXPECT_EQ(buffers.static_input_bytes, 3 * input_bytes(kDense));
  EXPECT_EQ(buffers.output_grad_bytes, 3 * input_bytes(kDense));
  EXPECT_EQ(buffers.boundary_bytes, 3 * input_bytes(kDense));
  const OwnedBuffers behind_attention = owned_buffers(layers, sizes, for_all(layers, edges_of({Scope::mlp}, {})));
  EXPECT_EQ(behind_attention.static_input_bytes, 3 * input_bytes(kDense));
  EXPECT_EQ(behind_attention.second_input_bytes, 3 * input_bytes(kDense));
}

}  // namespace
}  // namespace megalith::capture
