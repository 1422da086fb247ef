#include "megalith/io/run_lock.h"

#include <chrono>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"
#include "tests/support/sanitizers.h"

namespace megalith::io {
namespace {

using ::testing::HasSubstr;

TEST(RunLock, SecondHolderIsRefusedAndTheFirstNamed) {
  const TempDir dir;
  const RunLock first = RunLock::take(dir / "run");
  const std::string error = error_of<IoError>([&] { RunLock::take(dir / "run"); });
  EXPECT_THAT(error, HasSubstr((dir / "run/run.lock").string() + "] the folder is in use by host "));
  EXPECT_THAT(error, HasSubstr("pid " + std::to_string(::getpid()) + ", started 20"));
  EXPECT_THAT(error, HasSubstr(" UTC: stop that job, or choose another folder"));
}

TEST(RunLock, TriesAgainWhereNoDescriptorIsFree) {
  if (support::kAddressSanitizer) GTEST_SKIP() << "the sanitizer beside it needs a descriptor to check a type";
  const TempDir dir;
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::setrlimit(RLIMIT_NOFILE, &usual);
  });
  EXPECT_NO_THROW(RunLock::take(dir / "run"));
}

TEST(RunLock, FreedWhenDestroyedAndWhenMovedFrom) {
  const TempDir dir;
  {
    RunLock first = RunLock::take(dir.path());
    const RunLock moved = std::move(first);
    EXPECT_THROW(RunLock::take(dir.path()), IoError);
  }
  EXPECT_NO_THROW(RunLock::take(dir.path()));
}

TEST(RunLock, FollowsNoLink) {
  const TempDir dir;
  write_all(dir / "mine", "precious");
  std::filesystem::create_symlink(dir / "mine", dir / "run.lock");
  EXPECT_EQ(error_of<IoError>([&] { RunLock::take(dir.path()); }),
            "[" + (dir / "run.lock").string() + "] is a link: remove it");
  EXPECT_EQ(read_all(dir / "mine"), "precious");
  std::filesystem::remove(dir / "run.lock");
  std::filesystem::create_directory(dir / "run.lock");
  EXPECT_THROW(RunLock::take(dir.path()), IoError);
}

TEST(RunLock, KnowsWhenItsFolderWasRemoved) {
  const TempDir dir;
  const RunLock lock = RunLock::take(dir / "run");
  EXPECT_NO_THROW(lock.require_in_place());
  std::filesystem::remove_all(dir / "run");
  const auto text = [&] { return error_of<IoError>([&] { lock.require_in_place(); }); };
  EXPECT_THAT(text(), HasSubstr("run.lock] was removed or replaced while this job held it"));
  const RunLock next = RunLock::take(dir / "run");
  EXPECT_THAT(text(), HasSubstr("was removed or replaced"));
  EXPECT_NO_THROW(next.require_in_place());
}

TEST(RunLock, OfAnOutputTakesItsFileAway) {
  const TempDir dir;
  {
    const OutputLock lock(dir / "out", ".run.lock");
    EXPECT_THROW(OutputLock(dir / "out", ".run.lock"), IoError);
    EXPECT_TRUE(std::filesystem::exists(dir / "out" / ".run.lock"));
    EXPECT_NO_THROW(OutputLock(dir / "out", ".other.lock"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir / "out"));
  { const OutputLock lock(dir / "out", ".run.lock"), other(dir / "out", ".other.lock"); }
  auto lost = std::make_unique<OutputLock>(dir / "out", ".run.lock");
  std::filesystem::remove(dir / "out" / ".run.lock");
  const OutputLock next(dir / "out", ".run.lock");
  lost.reset();
  EXPECT_TRUE(std::filesystem::exists(dir / "out" / ".run.lock")) << "another's by now";
}

TEST(RunLock, CoversItsFolderAndWhatLiesInIt) {
  const TempDir dir;
  const RunLock lock = RunLock::take(dir / "run");
  EXPECT_TRUE(lock.covers(dir / "run"));
  EXPECT_TRUE(lock.covers(dir / "other/../run/checkpoints"));
  EXPECT_FALSE(lock.covers(dir / "run2"));
  EXPECT_FALSE(lock.covers(dir.path()));
}

TEST(RunLock, HolderThatHasNotWrittenYet) {
  const TempDir dir;
  const RunLock first = RunLock::take(dir.path());
  std::filesystem::resize_file(dir / "run.lock", 0);
  EXPECT_THAT(error_of<IoError>([&] { RunLock::take(dir.path()); }), HasSubstr("another job that is just starting"));
}

TEST(RunLock, KilledHolderNeverLeavesItStale) {
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const ::pid_t holder = ::fork();
    if (holder == 0) {
      const RunLock lock = RunLock::take(dir.path());
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    const double start = monotonic_s();
    EXPECT_THAT(error_of<IoError>([&] { RunLock::take(dir.path()); }), HasSubstr("pid " + std::to_string(holder)));
    EXPECT_LT(monotonic_s() - start, 1.0);
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
    EXPECT_NO_THROW(RunLock::take(dir.path()));
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

TEST(RunLock, OfManyAtOnceExactlyOneWins) {
  for (int round = 0; round < 10; ++round) {
    const TempDir dir;
    int done[2];
    ASSERT_EQ(::pipe(done), 0);
    std::vector<::pid_t> children;
    for (int i = 0; i < 4; ++i) {
      const ::pid_t child = ::fork();
      if (child != 0) {
        children.push_back(child);
        continue;
      }
      try {
        const RunLock lock = RunLock::take(dir.path());
        (void)!::write(done[1], "w", 1);
        for (;;) ::pause();
      } catch (const IoError&) {
        (void)!::write(done[1], "l", 1);
        ::_exit(0);
      }
    }
    std::string outcome(4, '?');
    for (char& c : outcome) ASSERT_EQ(::read(done[0], &c, 1), 1);
    EXPECT_EQ(std::count(outcome.begin(), outcome.end(), 'w'), 1) << outcome;
    for (const ::pid_t child : children) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    ::close(done[0]);
    ::close(done[1]);
  }
}

}  // namespace
}  // namespace megalith::io
