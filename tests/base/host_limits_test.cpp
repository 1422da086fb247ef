#include "megalith/base/host_limits.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith {
namespace {

/// A file system with what Linux reports of memory and processors.
class HostLimitsTest : public ::testing::Test {
 protected:
  void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file.string()).parent_path());
    write_all(root_ / file.string(), text);
  }
  HostLimits limits() const { return host_limits(root_.path()); }
  std::optional<Index> available() const { return limits().memory_available; }

  TempDir root_;
};

TEST_F(HostLimitsTest, MemoryIsWhatTheSystemHasAvailable) {
  EXPECT_EQ(available(), std::nullopt) << "the system does not report it";
  write("proc/meminfo", "MemTotal:       24684096 kB\nMemFree:         5 kB\nMemAvailable:   1000 kB\nBuffers: 7 kB\n");
  EXPECT_EQ(available(), 1000 * 1024);
  EXPECT_EQ(limits().memory_limit, std::nullopt);
  EXPECT_EQ(limits().cpu_quota, std::nullopt);
}

TEST_F(HostLimitsTest, MemoryIsLessWhereAGroupOrOneThatHoldsItIsLimited) {
  write("proc/meminfo", "MemAvailable:   1000 kB\n");
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/step/memory.current", "5000\n");
  EXPECT_EQ(available(), 1000 * 1024);
  EXPECT_EQ(limits().memory_limit, std::nullopt);
  write("sys/fs/cgroup/job/memory.max", "9000\n");
  write("sys/fs/cgroup/job/memory.current", "6000\n");
  EXPECT_EQ(available(), 3000);
  EXPECT_EQ(limits().memory_limit, 9000);
  write("sys/fs/cgroup/job/memory.stat", "anon 3400\ninactive_file 2000\nactive_file 500\n");
  EXPECT_EQ(available(), 5500) << "cached files make room";
  write("sys/fs/cgroup/job/memory.current", "12000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(HostLimitsTest, WhatIsNotFreeIsNotTaken) {
  require_memory({}, Index{1} << 30, "the model", "use less");
  HostLimits limits;
  limits.memory_available = 2048;
  require_memory(limits, 2048, "the model", "use less");
  try {
    require_memory(limits, 3072, "the model", "use less");
    FAIL() << "3072 of 2048 bytes";
  } catch (const IoError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[memory] the model: needs 3.00 KiB (3072 bytes) of host memory, 2.00 KiB (2048 bytes) are free: use less");
  }
}

TEST_F(HostLimitsTest, MemoryIsLimitedByGroupsOfVersion1Too) {
  write("proc/meminfo", "MemAvailable:   1000 kB\n");
  write("proc/self/cgroup", "9:cpu:/a\n4:memory:/container/elsewhere\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");  // all that is mounted
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 100\ntotal_active_file 10\n");
  EXPECT_EQ(available(), 2110);
  EXPECT_EQ(limits().memory_limit, 8000);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), 1000 * 1024) << "the number that stands for no limit";
  EXPECT_EQ(limits().memory_limit, std::nullopt);
}

TEST_F(HostLimitsTest, CpuQuotaIsTheLeastOfTheGroupsThatHoldTheProcess) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(limits().cpu_quota, std::nullopt);
  write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(limits().cpu_quota, 1.5);
  write("sys/fs/cgroup/job/step/cpu.max", "400000 100000\n");
  EXPECT_EQ(limits().cpu_quota, 1.5);
  write("sys/fs/cgroup/job/step/cpu.max", "25000 50000\n");
  EXPECT_EQ(limits().cpu_quota, 0.5);
}

TEST_F(HostLimitsTest, CpuQuotaOfVersion1StandsUnderOneNameOrAll) {
  write("proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/job\n0::/job\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(limits().cpu_quota, std::nullopt);
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(limits().cpu_quota, 3.0);
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(limits().cpu_quota, 2.0);
}

TEST(HostLimits, OfThisMachineAreKnown) {
  const HostLimits limits = host_limits();
  ASSERT_TRUE(limits.memory_available);
  EXPECT_GT(*limits.memory_available, 1 << 20);
}

}  // namespace
}  // namespace megalith
