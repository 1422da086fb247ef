#include "megalith/nn/moe/host_copies.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/nn/moe/all_to_all_dispatcher.h"

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

TEST(HostCopies, CountsThatNoRoutingGivesAreRefused) {
  const std::vector<std::int32_t> counts = {3, 0, 2, 5};
  const nn::CountedRows fits = {.sent = 3, .pairs = 4, .arrived = 8, .room = 8};
  EXPECT_NO_THROW(nn::check_counts("ep", counts, fits));
  const auto refused = [&](std::vector<std::int32_t> wrong, const nn::CountedRows& rows) -> std::string {
    try {
      nn::check_counts("ep", wrong, rows);
    } catch (const CollectiveError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused({3, -1, 2, 5}, fits), testing::HasSubstr("group ep: a count is -1: must be at least 0"));
  EXPECT_THAT(refused(counts, {.sent = 5, .pairs = 4, .arrived = 8, .room = 8}),
              testing::HasSubstr("sends 5 rows: it has 4 pairs"));
  EXPECT_THAT(refused(counts, {.sent = 3, .pairs = 4, .arrived = 9, .room = 8}),
              testing::HasSubstr("9 rows come here: there is room for 8"));
}

}  // namespace
}  // namespace megalith::capture
