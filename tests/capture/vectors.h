#pragma once
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/capture/layer_graphs.h"
#include "megalith/capture/scopes.h"
#include "megalith/nn/moe/host_copies.h"

#include "tests/test_data.h"

namespace megalith::capture {

/// A reference, so that loops may run over parts of it.
inline const nlohmann::json& graph_vectors() {
  static const nlohmann::json vectors = [] {
    std::ifstream file(MEGALITH_TEST_DATA "/graphs/partial_cuda_graph.json");
    return nlohmann::json::parse(file);
  }();
  return vectors;
}

inline ScopeSet scopes_of(const nlohmann::json& names) {
  Problems problems;
  const ScopeSet scopes = read_scopes(names.get<std::vector<std::string>>(), GraphMode::layers, problems);
  problems.throw_if_any("vectors");
  return scopes;
}

inline Capacity capacity_of(const std::string& name) {
  if (name == "drop") return Capacity::dropping;
  if (name == "drop_pad") return Capacity::padded;
  EXPECT_TRUE(name == "dropless" || name == "none") << name;
  return Capacity::dropless;
}

/// The same as layers have it.
inline nn::ExpertCapacity capacity_of_experts(Capacity capacity) {
  if (capacity == Capacity::dropless) return nn::ExpertCapacity::none;
  return capacity == Capacity::padded ? nn::ExpertCapacity::pad : nn::ExpertCapacity::drop;
}

inline pipeline::ScheduleShape shape_of(const nlohmann::json& entry) {
  return {.num_stages = entry.at("pp"), .num_chunks = entry.at("vpp"), .num_microbatches = entry.at("microbatches")};
}

/// The same number of captured layers in each chunk.
inline RankLayers alike(const pipeline::ScheduleShape& shape, int stage, int layers_per_chunk) {
  return {shape, stage, std::vector<int>(static_cast<std::size_t>(shape.num_chunks), layers_per_chunk)};
}

}  // namespace megalith::capture
