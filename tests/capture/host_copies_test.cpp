#include "megalith/nn/moe/host_copies.h"

#include <gtest/gtest.h>

#include "tests/capture/vectors.h"

namespace megalith::capture {
namespace {

using nlohmann::json;
using nn::host_copies;
using nn::HostCopies;
using nn::MoePoint;

TEST(HostCopies, PointsOfTheVectors) {
  for (const json& entry : graph_vectors().at("d2h_points")) {
    const HostCopies copies = host_copies({.capacity = capacity_of_experts(capacity_of(entry.at("capacity"))),
                                           .pads_routing = entry.at("router_padding"),
                                           .ep = entry.at("ep"),
                                           .etp = entry.at("etp"),
                                           .local_experts = entry.at("local_experts"),
                                           .fuses_permutation = entry.at("fused_permute"),
                                           .preprocess_captured = entry.at("preprocess_captured")});
    EXPECT_EQ(copies.issue ? json(name(*copies.issue)) : json(), entry.at("copy_issue_point")) << entry;
    EXPECT_EQ(name(copies.wait), entry.at("host_wait_point")) << entry;
    EXPECT_EQ(copies.legal(), entry.at("legal")) << entry;
  }
  EXPECT_EQ(graph_vectors().at("d2h_points").size(), 96U);
}

TEST(HostCopies, PointsAreOrdered) {
  for (const auto& [point, place] : graph_vectors().at("d2h_priority").items())
    EXPECT_EQ(name(static_cast<MoePoint>(place.get<int>())), point);
}

}  // namespace
}  // namespace megalith::capture
