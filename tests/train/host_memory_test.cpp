#include "megalith/train/host_memory.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::train {
namespace {

TEST(HostMemoryOfRanks, IsAddedUpByHost) {
  const auto refusal = [](const std::vector<HostShare>& ranks) -> std::string {
    try {
      require_host_memory(ranks, "graphs.check = 2", "less");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({{1, 512, 1024}, {1, 512, 1024}, {2, 900, 1000}}), "");
  EXPECT_EQ(refusal({{1, 512, 1024}, {2, 900, 1000}, {2, 1148, 1100}}),
            "graphs.check = 2: needs 2.00 KiB (2048 bytes) of host memory for the 2 ranks on the host of rank 1, which "
            "has 1000 B (1000 bytes) free: less");
}

TEST(HostMemoryOfRanks, TooLittleIsRefusedOnAllRanks) {
  for (const Index bytes : {Index{1}, Index{1} << 50}) {
    comm::run_ranks(3, [&](comm::World& world) {
      const bool is_too_much = bytes > 1;
      try {
        require_host_memory(world, bytes, "graphs.check = 2", "less");
        EXPECT_FALSE(is_too_much);
      } catch (const ConfigError& error) {
        EXPECT_TRUE(is_too_much);
        EXPECT_NE(std::string(error.what()).find("graphs.check = 2: needs"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("for the 3 ranks on the host of rank 0"), std::string::npos);
      }
    });
  }
}

}  // namespace
}  // namespace megalith::train
