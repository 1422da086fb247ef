#include "megalith/io/fault_fs.h"

#include <cerrno>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

FaultFs with(std::string_view faults, int rank = 0) { return {posix_fs(), parse_faults(faults), rank}; }

/// What wait() returns for a child that runs f().
template <class F>
int status_of_child(F&& f) {
  const ::pid_t child = ::fork();
  if (child == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(FaultText, Parses) {
  EXPECT_TRUE(parse_faults("").empty());
  const std::vector<Fault> faults = parse_faults("0:sync:2:EIO,*:write:5+:ENOSPC,3:*:*:sleep=20ms,1:rename:1:torn");
  ASSERT_EQ(faults.size(), 4u);
  EXPECT_EQ(faults[0], (Fault{0, Operation::sync, 2, 2, Fault::Action::error, EIO, 0}));
  EXPECT_EQ(faults[1], (Fault{{}, Operation::write, 5, ~std::uint64_t{0}, Fault::Action::error, ENOSPC, 0}));
  EXPECT_EQ(faults[2], (Fault{3, {}, 1, ~std::uint64_t{0}, Fault::Action::delay, 0, 0.02}));
  EXPECT_EQ(faults[3], (Fault{1, Operation::rename, 1, 1, Fault::Action::torn, 0, 0}));
}

TEST(FaultText, EveryOperationNameIsKnown) {
  for (int i = 0; i < kNumOperations; ++i) {
    const auto operation = static_cast<Operation>(i);
    EXPECT_EQ(parse_faults("0:" + std::string(operation_name(operation)) + ":1:kill").at(0).operation, operation);
  }
}

TEST(FaultText, ErrorsSayWhatIsWrong) {
  const std::string form = " (the form is RANK:OPERATION:N:ACTION, as 0:sync:2:EIO)";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"0:sync:2", "fields = 3: there must be 4"},
      {"-1:sync:2:EIO", "rank = -1: must be a number from 0 or *"},
      {"0:fsync:2:EIO", "operation = fsync: is not known; nearest: sync"},
      {"0:sync:0:EIO", "N = 0: must be a number from 1, a number followed by + or *"},
      {"0:sync:2x:EIO", "N = 2x: must be a number from 1, a number followed by + or *"},
      {"0:sync:2:EFOO",
       "action = EFOO: must be EIO, ENOSPC, EDQUOT, EROFS, EACCES, ENOENT, EMFILE, ESTALE, short, kill, torn, skip, "
       "sleep=TIME or spin=TIME"},
      {"0:sync:2:sleep=fast", "action = sleep=fast: needs a time up to an hour, as sleep=20ms"},
      {"0:call:2:EIO", "action = EIO: a communication call can only be given kill, sleep=TIME or spin=TIME"},
      {"0:sync:2:EIO:x",
       "action = EIO:x: must be EIO, ENOSPC, EDQUOT, EROFS, EACCES, ENOENT, EMFILE, ESTALE, short, kill, torn, skip, "
       "sleep=TIME or spin=TIME"}};
  for (const auto& [text, rule] : table) {
    EXPECT_EQ(error_of<ConfigError>([&] { parse_faults(text); }), "fault \"" + text + "\": " + rule + form);
  }
}

TEST(FaultFs, CountsEveryOperation) {
  const TempDir dir;
  FaultFs fs = with("");
  fs.record();
  publish_file(fs, dir / "a", "x");
  EXPECT_EQ(fs.count(Operation::create), 1u);
  EXPECT_EQ(fs.count(Operation::write), 1u);
  EXPECT_EQ(fs.count(Operation::rename), 1u);
  EXPECT_EQ(fs.count(), 6u);  // create write sync close rename sync_dir
  ASSERT_EQ(fs.recorded().size(), 6u);
  EXPECT_EQ(fs.recorded().back(), "sync_dir " + dir.path().string());
}

TEST(FaultFs, FailsExactlyTheNthCall) {
  const TempDir dir;
  FaultFs fs = with("0:write:2:ENOSPC");
  const auto file = fs.create(dir / "a");
  file->write("one ");
  EXPECT_EQ(error_of<IoError>([&] { file->write("two "); }),
            "cannot write " + (dir / "a").string() + ": no space left on device (injected)");
  file->write("three");
  file->close();
  EXPECT_EQ(read_all(dir / "a"), "one three");
}

TEST(FaultFs, PersistentFaultAndOtherRanks) {
  const TempDir dir;
  FaultFs hit = with("0:exists:2+:EIO"), spared = with("0:exists:2+:EIO", 1);
  EXPECT_NO_THROW(hit.exists(dir.path()));
  EXPECT_THROW(hit.exists(dir.path()), IoError);
  EXPECT_THROW(hit.exists(dir.path()), IoError);
  for (int i = 0; i < 5; ++i) EXPECT_NO_THROW(spared.exists(dir.path()));
}

TEST(FaultFs, ShortWriteLeavesHalf) {
  const TempDir dir;
  FaultFs fs = with("*:write:1:short");
  const auto file = fs.create(dir / "a");
  EXPECT_THROW(file->write("12345678"), IoError);
  EXPECT_EQ(read_all(dir / "a"), "1234");
}

TEST(FaultFs, KillsBeforeAndTornInTheMiddle) {
  const TempDir dir;
  const auto child = [&](const char* faults, const char* name) {
    return status_of_child([&] {
      FaultFs fs = with(faults);
      fs.create(dir / name)->write("12345678");
    });
  };
  EXPECT_EQ(WTERMSIG(child("*:write:1:kill", "killed")), SIGKILL);
  EXPECT_EQ(read_all(dir / "killed"), "");
  EXPECT_EQ(WTERMSIG(child("*:write:1:torn", "torn")), SIGKILL);
  EXPECT_EQ(read_all(dir / "torn"), "1234");
  EXPECT_EQ(WTERMSIG(child("*:create:1:torn", "created")), SIGKILL);
  EXPECT_EQ(read_all(dir / "created"), "");
  EXPECT_EQ(child("*:write:2:kill", "untouched"), 0);
  EXPECT_EQ(read_all(dir / "untouched"), "12345678");
}

TEST(FaultFs, Delays) {
  const TempDir dir;
  EXPECT_EQ(parse_faults("*:*:*:sleep=5000ms")[0].delay_s, 5.0);
  FaultFs fs = with("*:exists:*:sleep=20ms");
  const double start = monotonic_s();
  EXPECT_TRUE(fs.exists(dir.path()));
  EXPECT_GE(monotonic_s() - start, 0.02);
}

TEST(CallFaults, HitTheCallsOfTheirRank) {
  const std::vector<Fault> faults =
      parse_faults("1:call:2:spin=20ms,1:*:*:sleep=30s,*:call:3+:sleep=20ms,0:call:1:kill");
  EXPECT_FALSE(CallFaults(parse_faults("1:*:*:sleep=30s"), 1).any()) << "* is of files";
  EXPECT_FALSE(CallFaults(parse_faults("1:call:2:kill"), 0).any());
  CallFaults calls(faults, 1);
  ASSERT_TRUE(calls.any());
  for (const double min_s : {0.0, 0.02, 0.02, 0.02}) {
    const double start = monotonic_s();
    calls.pass();
    EXPECT_GE(monotonic_s() - start, min_s);
  }
}

// publish_file under every fault at every call: the old contents or the new ones, and nothing left over after an error.
TEST(PublishFile, IsWholeWhateverFails) {
  for (const char* action : {"EIO", "short", "kill", "torn"}) {
    int points = 0;
    for (bool untouched = false; !untouched; ++points) {
      const TempDir dir;
      const auto real = posix_fs();
      publish_file(*real, dir / "a", "old contents");
      const std::string fault = "0:*:" + std::to_string(points + 1) + ":" + action;
      const int status = status_of_child([&] {
        FaultFs fs = with(fault);
        try {
          publish_file(fs, dir / "a", "new contents");
        } catch (const IoError&) {
          ::_exit(74);
        }
      });
      const std::string found = read_all(dir / "a");
      EXPECT_TRUE(found == "old contents" || found == "new contents") << fault << ": " << found;
      if (WIFEXITED(status)) {
        EXPECT_EQ(real->list(dir.path()), std::vector<std::string>{"a"}) << fault;
      }
      untouched = status == 0;
    }
    EXPECT_EQ(points, 7) << action;  // six operations, and the run that none of them hit
  }
}

}  // namespace
}  // namespace megalith::io
