#include "megalith/io/log_file.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/fault_fs.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

TEST(LogFile, WhatAFailedWriteKeptComesBeforeTheNext) {
  for (const char* fault : {"0:write:2:ENOSPC", "0:write:2:short", "0:write:2:short,0:append:2:ENOSPC"}) {
    const TempDir dir;
    FaultFs fs(posix_fs(), parse_faults(fault), 0);
    LogFile log(fs, dir / "log");
    log.write("line 1\n");
    EXPECT_THROW(log.write("line 2\n"), IoError) << fault;
    if (std::string(fault).ends_with("append:2:ENOSPC")) {
      EXPECT_THROW(log.write("line 3\n"), IoError);
    } else {
      log.write("line 3\n");
    }
    log.write("line 4\n");
    log.sync();
    EXPECT_EQ(read_all(dir / "log"), "line 1\nline 2\nline 3\nline 4\n") << fault;
  }
}

TEST(LogFile, GoesOnAfterASyncThatFailed) {
  const TempDir dir;
  FaultFs fs(posix_fs(), parse_faults("0:sync:1:EIO"), 0);
  write_all(dir / "log", "old\n");
  LogFile log(fs, dir / "log");
  log.write("line 1\n");
  EXPECT_THROW(log.sync(), IoError);
  log.write("line 2\n");
  log.sync();
  EXPECT_EQ(read_all(dir / "log"), "old\nline 1\nline 2\n");
}

TEST(LogFile, GoesOnInAFileThatSomebodyCut) {
  const TempDir dir;
  FaultFs fs(posix_fs(), parse_faults("0:write:2:ENOSPC"), 0);
  LogFile log(fs, dir / "log");
  log.write("line 1\n");
  EXPECT_THROW(log.write("line 2\n"), IoError);
  write_all(dir / "log", "");
  log.write("line 3\n");
  EXPECT_EQ(read_all(dir / "log"), "line 2\nline 3\n");
}

}  // namespace
}  // namespace megalith::io
