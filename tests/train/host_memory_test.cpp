#include "megalith/train/host_memory.h"

#include <fstream>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/io/temp_dir.h"

namespace megalith::train {
namespace {

/// A file system with what Linux says of its memory.
class HostMemory : public ::testing::Test {
 protected:
  void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file.string()).parent_path());
    std::ofstream(root_ / file.string()) << text;
  }
  std::optional<Index> available() const { return available_host_memory(root_.path()); }

  TempDir root_;
};

TEST_F(HostMemory, IsWhatTheSystemHasAvailable) {
  EXPECT_EQ(available(), std::nullopt) << "the system does not say";
  write("proc/meminfo", "MemTotal:       24684096 kB\nMemFree:         5 kB\nMemAvailable:   1000 kB\nBuffers: 7 kB\n");
  EXPECT_EQ(available(), 1000 * 1024);
}

TEST_F(HostMemory, IsLessWhereAGroupOrOneThatHoldsItIsLimited) {
  write("proc/meminfo", "MemAvailable:   1000 kB\n");
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/step/memory.current", "5000\n");
  EXPECT_EQ(available(), 1000 * 1024);
  write("sys/fs/cgroup/job/memory.max", "9000\n");
  write("sys/fs/cgroup/job/memory.current", "6000\n");
  EXPECT_EQ(available(), 3000);
  write("sys/fs/cgroup/job/memory.stat", "anon 3400\ninactive_file 2000\nactive_file 500\n");
  EXPECT_EQ(available(), 5500) << "cached files make room";
  write("sys/fs/cgroup/job/memory.current", "12000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(HostMemory, IsLimitedByTheOlderKindOfGroupsToo) {
  write("proc/meminfo", "MemAvailable:   1000 kB\n");
  write("proc/self/cgroup", "9:cpu:/a\n4:memory:/container/elsewhere\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");  // all that is mounted
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 100\ntotal_active_file 10\n");
  EXPECT_EQ(available(), 2110);
}

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
