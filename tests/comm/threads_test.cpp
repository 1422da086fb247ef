#include <array>
#include <atomic>

#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/mutation_cases.h"
#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

class Threads : public testing::TestWithParam<std::tuple<TransportCase, int>> {};

TEST_P(Threads, Passes) {
  const auto& [each, ranks] = GetParam();
  EXPECT_NO_THROW(run_ranks(ranks, each.run, {.timeout_s = 60}));
}

INSTANTIATE_TEST_SUITE_P(All, Threads,
                         testing::Combine(testing::ValuesIn(transport_cases()), testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "On" +
                                  std::to_string(std::get<1>(each.param));
                         });

class ThreadsMisuse : public testing::TestWithParam<MisuseCase> {};

TEST_P(ThreadsMisuse, EndsWithItsError) {
  const MisuseCase& misuse = GetParam();
  const double start = monotonic_s();
  try {
    run_ranks(misuse.ranks, misuse.run, {.timeout_s = kMisuseTimeout_s});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), misuse.code) << text;
    EXPECT_EQ(dynamic_cast<const AbortedError*>(&error), nullptr) << text;
    EXPECT_TRUE(text.starts_with("rank ")) << text;
    for (const std::string_view fragment : misuse.fragments) {
      EXPECT_NE(text.find(fragment), std::string::npos) << fragment << "\nis not in\n" << text;
    }
  }
  EXPECT_LT(monotonic_s() - start, 2 * kMisuseTimeout_s);
}

INSTANTIATE_TEST_SUITE_P(All, ThreadsMisuse, testing::ValuesIn(misuse_cases()),
                         [](const auto& each) { return std::string(each.param.name); });

class ThreadsMutation : public testing::TestWithParam<MutationCase> {};

TEST_P(ThreadsMutation, IsNoticedAndWritesBehindNoTensor) {
  const MutationCase& mutated = GetParam();
  std::array ranks = {MutatedRank(mutated, 0), MutatedRank(mutated, 1)};
  try {
    run_ranks(2, [&](World& world) { ranks[static_cast<std::size_t>(world.rank())].run(world); },
              {.timeout_s = kMutationTimeout_s});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ExitCode::collective || error.code() == ExitCode::hang) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, ThreadsMutation, testing::ValuesIn(mutation_cases()),
                         [](const auto& each) { return each.param.name(); });

std::string text_of_failure(int ranks, const std::function<void(World&)>& body) {
  try {
    run_ranks(ranks, body, {.timeout_s = 1});
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// A message that nobody waits for any more, as its ticket was lost, writes to no memory of a step that an error has
/// left.
TEST(ThreadsMessages, OfAStepThatFailsReachItsMemoryNoMore) {
  run_ranks(2, [](World& world) {
    Exec ex;
    float memory = 1;
    const Tensor tensor(&memory, {1}, DType::f32);
    const auto wait_for_all = [&] { barrier(ex, world.all()); };
    if (world.rank() == 0) {
      StepPattern pattern;
      mutate(world, {Mutation::Kind::twice, 0});
      try {
        const WatchedStep step(world, pattern, ex);
        const Pending second = recv(ex, world.all(), tensor, 1);
        throw InternalError("the step fails");
      } catch (const InternalError&) {
      }
      wait_for_all();
      wait_for_all();
      EXPECT_EQ(memory, 1);
    } else {
      memory = 2;
      wait_for_all();
      const Pending sent = send(ex, world.all(), tensor, 0);
      wait_for_all();
    }
  });
}

TEST(ThreadsMessages, NameTheOddRankAndWhatTheAwaitedOneDoes) {
  for (const MisuseCase& misuse : misuse_cases()) {
    if (misuse.name == "OtherCountOfThree") {
      EXPECT_NE(text_of_failure(3, misuse.run).find("rank 0 called all_reduce(sum, f32 x 50001)"), std::string::npos);
    }
    if (misuse.name == "SwappedGroups") {
      EXPECT_NE(text_of_failure(2, misuse.run).find("(waiting in all_reduce(sum, f32 x 10) #0 at misuse_cases.cpp:"),
                std::string::npos);
    }
    if (misuse.name == "EndedRank") {
      EXPECT_NE(text_of_failure(2, misuse.run).find("for rank 1 (ended)"), std::string::npos);
    }
  }
}

TEST(RunRanks, FreesTheOthersAtOnceAndKeepsTheType) {
  std::atomic<int> freed = 0;
  const double start = monotonic_s();
  const auto body = [&](World& world) {
    if (world.rank() == 2) throw std::out_of_range("not one of ours");
    Exec ex;
    try {
      barrier(ex, world.all());
    } catch (const AbortedError& error) {
      EXPECT_STREQ(error.what(), "[barrier] group world of 4 ranks: rank 2 failed first: not one of ours");
      freed += 1;
      throw;
    }
  };
  EXPECT_THROW(run_ranks(4, body), std::out_of_range);
  EXPECT_EQ(freed, 3);
  EXPECT_LT(monotonic_s() - start, 5);
}

TEST(RunRanks, AbortWithoutAnExceptionIsAFailure) {
  EXPECT_THROW(run_ranks(2,
                         [](World& world) {
                           if (world.rank() == 0) world.abort("told to");
                         }),
               InternalError);
}

TEST(RunRanks, PutsTheRankInFrontOnce) {
  const auto throws = [](World& world) {
    if (world.rank() == 1) throw InputError("a.bin: cut short");
  };
  EXPECT_EQ(text_of_failure(2, throws), "rank 1: a.bin: cut short");
  const auto twice = [&](World&) { run_ranks(2, throws); };
  EXPECT_EQ(text_of_failure(1, twice), "rank 1: a.bin: cut short");
  EXPECT_THROW(run_ranks(2, throws), InputError);
  EXPECT_THROW(run_ranks(0, throws), InternalError);
}

TEST(RunRanks, RunsAgainAfterAFailure) {
  EXPECT_THROW(run_ranks(2, misuse_cases()[0].run), CollectiveError);
  EXPECT_NO_THROW(run_ranks(2, transport_cases()[0].run));
}

}  // namespace
}  // namespace megalith::comm
