#include "megalith/io/retrying_fs.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fault_fs.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

std::shared_ptr<Fs> with(const std::string& faults) {
  return retrying_fs(std::make_shared<FaultFs>(posix_fs(), parse_faults(faults), 0));
}

class RetryingFsTest : public ::testing::Test {
 protected:
  RetryingFsTest() { write_all(dir_ / "a", "text"); }
  /// Every read once.
  void read(Fs& fs) {
    EXPECT_EQ(fs.map(dir_ / "a").text(), "text");
    EXPECT_EQ(fs.list(dir_.path()).size(), 1u);
    EXPECT_TRUE(fs.exists(dir_ / "a"));
    EXPECT_TRUE(fs.is_dir(dir_.path()));
    EXPECT_FALSE(fs.is_link(dir_ / "a"));
    EXPECT_EQ(fs.file_size(dir_ / "a"), 4u);
    EXPECT_GT(fs.free_bytes(dir_.path()), 0u);
  }
  TempDir dir_;
};

TEST_F(RetryingFsTest, ReadsThatFailForAMomentAreTriedAgain) {
  for (const char* reason : {"EIO", "ESTALE", "EMFILE"}) {
    std::string faults;
    for (const char* read : {"map", "list", "exists", "is_dir", "is_link", "file_size", "free_bytes"})
      faults += str(faults.empty() ? "" : ",", "0:", read, ":1:", reason);
    const auto fs = with(faults);
    EXPECT_NO_THROW(read(*fs)) << reason;
  }
}

TEST_F(RetryingFsTest, WhatStaysIsThrownAfterFourCalls) {
  const auto three = with("0:exists:1:EIO,0:exists:2:EIO,0:exists:3:EIO");
  EXPECT_TRUE(three->exists(dir_ / "a"));
  const auto fs = with("0:exists:*:EIO");
  EXPECT_THROW(fs->exists(dir_ / "a"), IoError);
}

TEST_F(RetryingFsTest, WhatCannotPassIsThrownAtOnce) {
  const auto refused = with("0:map:1:EACCES");
  EXPECT_THROW(refused->map(dir_ / "a"), IoError);
  EXPECT_THROW(with("")->map(dir_ / "none"), InputError);
}

TEST_F(RetryingFsTest, WritesAreNotTriedAgain) {
  const auto fs = with("0:create:1:EIO,0:rename:1:EIO,0:make_dir:1:EIO,0:unlink:1:EIO,0:sync_dir:1:EIO");
  EXPECT_THROW(fs->create(dir_ / "b"), IoError);
  EXPECT_THROW(fs->rename(dir_ / "a", dir_ / "b"), IoError);
  EXPECT_THROW(fs->make_dir(dir_ / "c"), IoError);
  EXPECT_THROW(fs->unlink(dir_ / "a"), IoError);
  EXPECT_THROW(fs->sync_dir(dir_.path()), IoError);
  EXPECT_EQ(read_all(dir_ / "a"), "text");
}

}  // namespace
}  // namespace megalith::io
