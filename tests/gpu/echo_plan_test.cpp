// ECHO's planner on a GPU: the plans and all stages of the CPU.
#include "megalith/ops/echo_plan.h"

#include <gtest/gtest.h>

#include "tests/ops/echo_vectors.h"
#include "tests/support/twin.h"

namespace megalith::ops {
namespace {

void expect_plan_of_cpu(const EchoCase& of, int number) {
  const PlannedEcho want = planned_echo(of), got = planned_echo(of, Device::cuda);
  ASSERT_EQ(got.src, want.src) << "case " << number;
  ASSERT_EQ(got.cap, want.cap) << "case " << number;
  ASSERT_EQ(got.take, want.take) << "case " << number;
  ASSERT_EQ(got.moves, want.moves) << "case " << number;
  ASSERT_EQ(got.hash, want.hash) << "case " << number;
  ASSERT_TRUE(got == want) << "case " << number << ": " << of.ranks << " ranks, " << of.experts << " experts, "
                           << of.slots << " slots";
}

// The stages of a GPU's planner cannot be called one by one: they are read from whole plans. So can a CPU's, which
// EchoVectors.EveryCaseWithinWholePlans of tests_L3 shows. Seven cases are of the host alone (kNotOfPlans).
TEST(GpuEchoPlan, EveryCaseOfTheVectors) {
  MEGALITH_NEEDS_GPUS(1);
  const StagesOfPlans stages(Device::cuda);
  EXPECT_EQ(check_echo_vectors(echo_checks(stages, Device::cuda), kNotOfPlans), 35);
}

TEST(GpuEchoPlan, EqualsTheCpus) {
  MEGALITH_NEEDS_GPUS(1);
  for (int number = 0; number < 5000; ++number) {
    EchoCase of = random_echo_case(number);
    ASSERT_NO_FATAL_FAILURE(expect_plan_of_cpu(of, number));
    of.balance = EchoBalance::exact;
    of.min_pairs = 0;
    ASSERT_NO_FATAL_FAILURE(expect_plan_of_cpu(of, number));
  }
}

TEST(GpuEchoPlan, EqualsTheCpusAtTheLargestSizes) {
  MEGALITH_NEEDS_GPUS(1);
  for (const auto& [ranks, experts] : {std::pair{256, 1024}, {256, 256}, {1, 1024}, {2, 1024}}) {
    for (const EchoBalance balance : {EchoBalance::greedy, EchoBalance::exact}) {
      EchoCase of{.ranks = ranks, .experts = experts, .slots = 8, .balance = balance};
      for (Index i = 0; i < of.ranks * of.experts; ++i)
        of.counts.push_back(static_cast<std::int32_t>(4000 / (1 + i % of.experts) + i * 7 % 5));
      ASSERT_NO_FATAL_FAILURE(expect_plan_of_cpu(of, ranks));
    }
  }
}

TEST(GpuEchoPlan, HashesTheCpusNumbersInEverySecondStep) {
  MEGALITH_NEEDS_GPUS(1);
  const EchoCase of = random_echo_case(3);
  const auto want = static_cast<std::int64_t>(planned_echo(of).hash);
  for (std::uint64_t step = 0; step < 4; ++step)
    EXPECT_EQ(hash_in_step(of, Device::cuda, step, 2, 77), step % 2 == 0 ? want : 77) << "step " << step;
}

}  // namespace
}  // namespace megalith::ops
