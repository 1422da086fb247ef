#include "megalith/base/team.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace megalith {
namespace {

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Team, EveryTaskRunsOnceAndIsDoneAtTheEnd) {
  for (const int threads : {1, 2, 3, 8}) {
    const TeamSize size(threads);
    EXPECT_EQ(team_size(), threads);
    for (const Index tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(tasks));  // no atomics: what tasks wrote must be seen here
      share(tasks, [&](Index i) { ++runs[static_cast<std::size_t>(i)]; });
      EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(tasks), 1)) << threads << " threads";
    }
  }
}

TEST(Team, ManyShortLoopsInARowMixNoTasks) {
  const TeamSize size(4);
  std::vector<Index> last(3);
  for (Index round = 1; round <= 20000; ++round) {
    share(3, [&](Index i) { last[static_cast<std::size_t>(i)] = round; });
    ASSERT_EQ(last, std::vector<Index>(3, round));
  }
}

TEST(Team, TasksRunSideBySide) {
  const TeamSize size(3);
  std::atomic<int> inside{0};
  share(3, [&](Index) {
    ++inside;
    while (inside < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 3);
}

TEST(Team, WithinATaskLoopsAreNotSharedAgain) {
  const TeamSize size(4);
  std::atomic<int> calls{0};
  share(4, [&](Index) {
    const std::thread::id mine = std::this_thread::get_id();
    share(5, [&](Index) {
      EXPECT_EQ(std::this_thread::get_id(), mine);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 20);
}

TEST(Team, TheFirstExceptionComesWhenAllTasksHaveEnded) {
  const TeamSize size(2);
  std::atomic<int> calls{0};
  const auto run = [&] {
    share(50, [&](Index i) {
      ++calls;
      if (i % 10 == 3) throw std::runtime_error("task");
    });
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_EQ(calls, 50);
  share(2, [&](Index) { ++calls; });  // and the team goes on
  EXPECT_EQ(calls, 52);
}

TEST(Team, EveryThreadHasItsOwn) {
  std::vector<std::thread> threads;
  std::vector<Index> sums(4);
  for (std::size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] {
      const TeamSize size(static_cast<int>(t) + 1);
      for (int round = 0; round < 500; ++round) {
        std::atomic<Index> sum{0};
        share(10, [&](Index i) { sum += i; });
        sums[t] += sum;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<Index>(4, 500 * 45));
}

TEST(Team, SizesNestAndEnd) {
  const int before = team_size();
  {
    const TeamSize outer(3);
    share(8, [](Index) {});
    {
      const TeamSize inner(2);
      EXPECT_EQ(team_size(), 2);
      std::mutex mutex;
      std::set<std::thread::id> seen;
      share(1000, [&](Index) {
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
      });
      EXPECT_LE(seen.size(), 2u);
    }
    EXPECT_EQ(team_size(), 3);
  }
  EXPECT_EQ(team_size(), before);
  EXPECT_GE(usable_cores(), 1);
}

TEST(Team, HasAsManyThreadsAsAQuotaKeepsBusy) {
  EXPECT_EQ(cores_within(4, std::nullopt), 4);
  EXPECT_EQ(cores_within(4, 8.0), 4);
  EXPECT_EQ(cores_within(4, 2.0), 2);
  EXPECT_EQ(cores_within(4, 1.5), 2);
  EXPECT_EQ(cores_within(4, 0.25), 1);
}

/// What others on a busy machine would miss. It is no timed test of speed: a team that spins takes all cores for 200
/// ms.
TEST(Team, TakesNoTimeBetweenLoops) {
  const TeamSize size(8);
  share(100, [](Index) {});
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

/// The owner sleeps, too, while it waits for a task that another thread has begun.
TEST(Team, TakesNoTimeWhileItWaitsForTheLastTask) {
  const TeamSize size(2);
  const std::thread::id owner = std::this_thread::get_id();
  const double before = cpu_seconds();
  std::atomic<bool> begun{false};
  share(2, [&](Index) {
    if (std::this_thread::get_id() == owner) {
      while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  });
  EXPECT_LT(cpu_seconds() - before, 0.15);
}

}  // namespace
}  // namespace megalith
