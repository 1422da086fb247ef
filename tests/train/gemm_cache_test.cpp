#include "megalith/train/gemm_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/io/fault_fs.h"
#include "megalith/io/run_lock.h"

#include "tests/io/resealed.h"
#include "tests/io/temp_dir.h"
#include "tests/ops/gemms.h"

namespace megalith::train {
namespace {

using support::gemm_table;
using support::kA100;
using support::kH200;
using ::testing::HasSubstr;

class GemmCacheTest : public ::testing::Test {
 protected:
  GemmCache cache(const ops::GemmPlatform& platform = kH200) { return {*fs_, dir_.path(), platform}; }
  io::Path file() { return cache().file(); }

  /// What read() gives, and how many warnings it prints.
  std::optional<ops::GemmTable> read(int warnings) {
    ::testing::internal::CaptureStderr();
    const std::optional<ops::GemmTable> table = cache().read();
    const std::string printed = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(printed, '\n'), warnings) << printed;
    if (warnings > 0) {
      EXPECT_THAT(printed, HasSubstr(file().string()));
    }
    return table;
  }

  TempDir dir_;
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
};

TEST_F(GemmCacheTest, HasAFileForEveryGpuAndVersion) {
  EXPECT_EQ(file(), dir_.path() / "gemm" / "NVIDIA-H200-cuBLASLt-13.1.0.json");
  EXPECT_EQ(cache(kA100).file().filename(), "NVIDIA-A100-SXM4-80GB-cuBLASLt-13.1.0.json");
  ops::GemmPlatform odd = kH200;
  odd.gpu = "../x/\n";
  EXPECT_EQ(cache(odd).file().parent_path(), dir_.path() / "gemm");
}

TEST_F(GemmCacheTest, KeepsWhatJobsTimedOneAfterTheOther) {
  EXPECT_FALSE(read(0).has_value());
  cache().add({});
  EXPECT_FALSE(std::filesystem::exists(dir_ / "gemm"));
  cache().add(gemm_table(kH200, {{10, 1}, {20, 2}}));
  cache().add(gemm_table(kH200, {{20, 5}, {30, 3}}));
  cache(kA100).add(gemm_table(kA100, {{10, 9}}));
  EXPECT_EQ(read(0), gemm_table(kH200, {{10, 1}, {20, 5}, {30, 3}}));
}

TEST_F(GemmCacheTest, ADamagedFileIsIgnoredWithOneWarningAndReplaced) {
  cache().add(gemm_table(kH200, {{10, 1}, {20, 2}}));
  const std::string whole = read_all(file());
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string(), whole + "x",
                                     resealed(whole, "\"version\": 2", "\"version\": 7")}) {
    write_all(file(), damaged);
    EXPECT_FALSE(read(1).has_value());
  }
  cache().add(gemm_table(kH200, {{30, 3}}));
  EXPECT_EQ(read(0), gemm_table(kH200, {{30, 3}}));
}

TEST_F(GemmCacheTest, AFolderInPlaceOfTheFileIsIgnored) {
  std::filesystem::create_directories(file());
  EXPECT_FALSE(read(1).has_value());
  cache().add(gemm_table(kH200, {{10, 1}}));
  EXPECT_TRUE(std::filesystem::is_directory(file()));
}

TEST_F(GemmCacheTest, AFileOfAnotherPlatformIsNotMergedInto) {
  std::filesystem::create_directories(dir_ / "gemm");
  write_all(file(), ops::gemm_table_text(gemm_table(kA100, {{10, 1}})));
  cache().add(gemm_table(kH200, {{20, 2}}));
  EXPECT_EQ(read(0), gemm_table(kH200, {{20, 2}}));
}

TEST_F(GemmCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  write_all(dir_ / "file", "");
  const GemmCache nowhere(*fs_, dir_ / "file", kH200);  // a folder inside a file
  nowhere.add(gemm_table(kH200, {{10, 1}}));
  EXPECT_FALSE(nowhere.read().has_value());
  const GemmCache none(*fs_, {}, kH200);
  none.add(gemm_table(kH200, {{10, 1}}));
  EXPECT_FALSE(none.read().has_value());
}

TEST_F(GemmCacheTest, AnotherJobThatWritesIsNotWaitedForAndNotDisturbed) {
  cache().add(gemm_table(kH200, {{10, 1}}));
  {
    const io::RunLock other = io::RunLock::take(dir_ / "gemm");
    cache().add(gemm_table(kH200, {{20, 2}}));
  }
  EXPECT_EQ(read(0), gemm_table(kH200, {{10, 1}}));
}

// Whatever operation fails while the cache grows, the old file or the new one stands, and the job goes on.
TEST_F(GemmCacheTest, AFailedWriteLeavesTheOldFileOrTheNewOne) {
  const ops::GemmTable before = gemm_table(kH200, {{10, 1}}), after = gemm_table(kH200, {{10, 1}, {20, 2}});
  for (const char* operation : {"create", "write", "sync", "close", "rename", "sync_dir"}) {
    std::filesystem::remove_all(dir_ / "gemm");
    cache().add(before);
    io::FaultFs faulty(fs_, io::parse_faults(std::string("0:") + operation + ":1:ENOSPC"), 0);
    GemmCache(faulty, dir_.path(), kH200).add(gemm_table(kH200, {{20, 2}}));
    const std::optional<ops::GemmTable> now = read(0);
    EXPECT_EQ(now, std::string_view(operation) == "sync_dir" ? after : before) << operation;
    EXPECT_EQ(std::ranges::distance(std::filesystem::directory_iterator(dir_ / "gemm")), 2) << operation;
  }
}

}  // namespace
}  // namespace megalith::train
