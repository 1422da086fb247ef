#include "megalith/comm/hang_verdict.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/comm/patience.h"
#include "megalith/comm/threads/thread_world.h"

// Which rank is named when a wait has passed its timeout.
namespace megalith::comm {
namespace {

using Ranks = std::vector<std::optional<RankPosition>>;
constexpr double kNow_s = 100, kSilent_s = 1;

RankPosition made(Position::State state, double alive_s, std::vector<int> awaited = {}) {
  RankPosition at;
  std::strcpy(at.position.group.data(), "tp");
  at.position.state = state;
  at.position.op = Op::all_reduce;
  at.position.dtype = DType::f32;
  at.position.any_call = 1;
  at.position.count = 128;
  at.position.sequence = 7;
  at.position.step = 12;
  at.position.num_awaited = static_cast<int>(awaited.size());
  std::ranges::copy(awaited, at.position.awaited.begin());
  at.alive_s = alive_s;
  return at;
}
RankPosition waits(std::vector<int> awaited, double silent_s = 0.01) {
  return made(Position::State::waits, kNow_s - silent_s, std::move(awaited));
}
RankPosition computes(double silent_s) { return made(Position::State::computes, kNow_s - silent_s); }

std::string verdict(const Ranks& ranks, int reporter = 0) { return verdict_of(ranks, reporter, kNow_s, kSilent_s); }

TEST(HangVerdict, NamesTheRankThatIsAwaitedThroughOthers) {
  EXPECT_EQ(verdict({waits({1}), waits({3}), waits({0}), computes(3.1)}),
            "rank 3 stands still since 3.1 s (step 12, after all_reduce(sum, f32 x 128) #7 of group tp; awaited by "
            "rank 1, through others by rank 0, rank 2)");
}

TEST(HangVerdict, NamesARankThatStoppedWhileItWaited) {
  EXPECT_EQ(verdict({waits({2}), waits({0}), waits({1}, 2.94)}),
            "rank 2 stands still since 2.9 s (step 12, in all_reduce(sum, f32 x 128) #7 of group tp; awaited by rank "
            "0, through others by rank 1)");
}

TEST(HangVerdict, NamesTheOldestOfSeveralSilentRanks) {
  EXPECT_TRUE(verdict({waits({1, 2, 3}), computes(1.5), computes(4.5), computes(3)}).starts_with("rank 2 stands"));
}

TEST(HangVerdict, PrefersAnAwaitedRankToAnOlderOneThatNobodyAwaits) {
  EXPECT_TRUE(verdict({waits({1}), computes(3), computes(50)}).starts_with("rank 1 stands still since 3.0 s"));
  EXPECT_TRUE(verdict({waits({1}), waits({0}), computes(50)}).starts_with("rank 2 stands still since 50.0 s"))
      << "where all awaited ones are alive";
}

TEST(HangVerdict, BlamesNoRankWhereAllWaitForEachOther) {
  EXPECT_EQ(verdict({waits({1}), waits({0})}),
            "no rank stands still: rank 0 waits for rank 1 in all_reduce(sum, f32 x 128) #7 of group tp; rank 1 waits "
            "for rank 0 in all_reduce(sum, f32 x 128) #7 of group tp");
}

TEST(HangVerdict, NamesARankThatHasEndedOrCannotBeRead) {
  EXPECT_EQ(verdict({waits({1}), made(Position::State::ended, 10)}), "rank 1 has ended, and is awaited");
  EXPECT_EQ(verdict({waits({1}), std::nullopt}), "rank 1 is awaited, and its position cannot be read from here");
}

TEST(HangVerdict, StatesHowARankStandsStill) {
  Ranks ranks = {waits({1}), computes(3)};
  ranks[1]->process = "process 4242 is stopped";
  ranks[1]->position.any_call = 0;
  ranks[1]->position.step = -1;
  EXPECT_EQ(verdict(ranks),
            "rank 1 stands still since 3.0 s (before its first call; process 4242 is stopped; awaited by rank 0)");
}

TEST(Positions, AreReadAsTheyWereWritten) {
  Positions positions(3);
  EXPECT_FALSE(positions.read(1)) << "it has not written yet";
  PositionWriter& writer = positions.writer(1);
  writer.introduce();
  writer.begin_step(5);
  Call call;
  call.op = Op::recv;
  call.dtype = DType::bf16;
  call.count = 30;
  call.root = 2;
  call.lane = 1;
  call.sequence = 9;
  writer.wait_in("a-group-with-a-name-of-thirty", call, 10);
  const int awaited[] = {0, 2};
  writer.await(awaited, 2);
  writer.alive(11);
  const RankPosition read = positions.read(1).value();
  EXPECT_EQ(call_text(read.position), "recv(bf16 x 30 from member 2, lane 1) #9 of group a-group-with-a-name-of-t");
  EXPECT_EQ(read.position.state, Position::State::waits);
  EXPECT_EQ(read.position.step, 5);
  EXPECT_EQ(read.position.num_awaited, 2);
  EXPECT_EQ(read.position.awaited[1], 2);
  EXPECT_EQ(read.alive_s, 11);
  EXPECT_NE(read.process.find("process " + std::to_string(::getpid()) + " computes"), std::string::npos)
      << read.process;
  EXPECT_TRUE(positions.claim_report());
  EXPECT_FALSE(positions.claim_report()) << "one rank reports";
}

TEST(Positions, HoldTheFirstFailure) {
  Positions positions(3);
  EXPECT_FALSE(positions.failure());
  const std::string reason(Positions::kMaxFailureText + 1, 'x');
  positions.write_failure(2, reason);
  positions.write_failure(1, "later");
  ASSERT_TRUE(positions.failure());
  EXPECT_EQ(positions.failure()->rank, 2);
  EXPECT_EQ(positions.failure()->reason, reason.substr(1)) << "the text is cut";
  EXPECT_FALSE(positions.read(0)) << "no rank has written its position";
}

TEST(Positions, AreNeverReadInTheMiddleOfAChange) {
  Positions positions(1);
  PositionWriter& writer = positions.writer(0);
  writer.introduce();
  std::atomic<bool> done{false};
  std::thread changes([&] {
    Call call;
    for (; !done; call.sequence ^= 1) writer.enter(call.sequence == 0 ? "even" : "odd", call, 1);
  });
  const double start = monotonic_s();
  int torn = 0;
  while (monotonic_s() - start < 1) {
    const Position read = positions.read(0).value().position;
    if (read.any_call != 0 && std::string_view(read.group.data()) != (read.sequence == 0 ? "even" : "odd")) ++torn;
  }
  done = true;
  changes.join();
  EXPECT_EQ(torn, 0);
}

// Processes of a home read the reports of another in turn, each in its own time.
TEST(Positions, AReportThatAnotherProcessHasReadIsNoSignOfLife) {
  Positions positions(2);
  const auto alive_after = [&](std::uint64_t report, double alive_s) {
    positions.write_remote(1, report, made(Position::State::waits, alive_s));
    return positions.read(1)->alive_s;
  };
  EXPECT_EQ(alive_after(5, 10), 10);
  EXPECT_EQ(alive_after(5, 12), 10);
  EXPECT_EQ(alive_after(6, 13), 13);
  EXPECT_EQ(alive_after(5, 15), 13) << "a report that was overtaken";
}

TEST(Patience, DoesNotCountTimeInWhichTheRankDidNotRun) {
  Patience patience(3);
  const double start = monotonic_s();
  EXPECT_FALSE(patience.is_over(start + 1000)) << "stopped for long";
  EXPECT_FALSE(patience.is_over(start + 1001));
  EXPECT_TRUE(patience.is_over(start + 1002.1));
  EXPECT_NEAR(patience.waited_s(start + 1002), 1002, 1);
}

/// 0 waits for 1, 1 for 2, and 2 for 3.
void chain(World& world, const std::function<void()>& of_the_last) {
  Exec ex;
  std::vector<Group> pairs;
  for (int first = 0; first < 3; ++first) {
    if (world.rank() == first || world.rank() == first + 1)
      pairs.push_back(world.group("pair" + std::to_string(first), {first, first + 1}));
  }
  barrier(ex, world.all());
  if (world.rank() == 3) of_the_last();
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) barrier(ex, *pair);
}

TEST(ThreadsHang, NamesTheThreadThatStandsStill) {
  for (int trial = 0; trial < 3; ++trial) {
    try {
      run_ranks(4,
                [](World& world) {
                  world.begin_step(3);
                  chain(world, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); });
                },
                {.timeout_s = 1});
      FAIL() << "nothing was thrown";
    } catch (const HangVerdict& error) {
      EXPECT_TRUE(error.verdict().starts_with("rank 3 stands still since ")) << error.verdict() << '\n' << error.what();
      EXPECT_NE(error.verdict().find("(step 3, after barrier() #0 of group world; thread "), std::string::npos)
          << error.verdict();
      EXPECT_NE(error.verdict().find(" sleeps in a system call; awaited by rank 2, through others by rank "),
                std::string::npos)
          << error.verdict();
    }
  }
}

}  // namespace
}  // namespace megalith::comm
