#include "megalith/train/gpu_memory.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/train/attention_facts.h"

#include "tests/train/small_run.h"

namespace megalith::train {
namespace {

config::RunPlan plan_of(bool deterministic) {
  config::RunPlan plan = testing::small_plan({.tp = 2}, "fp32");
  plan.device = Device::cuda;
  plan.train.precision = "bf16";
  plan.train.deterministic = deterministic;
  plan.train.micro_batch = 6;
  plan.model.seq_len = 1024;
  plan.model.num_heads = 16;
  plan.model.hidden_size = 16 * 64;
  plan.model.attention_dropout = 0;
  return plan;
}

TEST(GpuMemory, TheSameBitsTakeMemoryWhereTheLibrarysAttentionRuns) {
  EXPECT_EQ(deterministic_attention_bytes(plan_of(true)), Index{6} * 8 * 1024 * 1024 * 2);
  EXPECT_EQ(deterministic_attention_bytes(plan_of(false)), 0);
  config::RunPlan plan = plan_of(true);
  plan.model.seq_len = 1000;  // its tiles have 128 queries and keys
  EXPECT_EQ(deterministic_attention_bytes(plan), Index{6} * 8 * 1024 * 1024 * 2);
  const auto in_a_plan = [](auto&& change) {
    config::RunPlan changed = plan_of(true);
    change(changed);
    return deterministic_attention_bytes(changed);
  };
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.train.precision = "fp32"; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.attention_dropout = 0.1; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.hidden_size = 16 * 136; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.hidden_size = 16 * 60; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.device = Device::cpu; }), 0);
}

TEST(OwnAttention, HasAReasonThatNamesTheSetting) {
  EXPECT_EQ(own_attention_reason(plan_of(true)), "");
  const auto reason = [](auto&& change) {
    config::RunPlan plan = plan_of(true);
    change(plan);
    return own_attention_reason(plan);
  };
  EXPECT_EQ(reason([](config::RunPlan& p) { p.train.precision = "fp32"; }).find("train.precision = fp32: "), 0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.attention_dropout = 0.1; }).find("model.attention_dropout = 0.1: "),
            0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.hidden_size = 16 * 136; }).find("heads of 136: "), 0u);
  EXPECT_EQ(reason([](config::RunPlan& p) {
              p.train.precision = "fp32";
              p.device = Device::cpu;
            }),
            "");
}

/// Of two ranks, where the second takes 4 KiB and has `left`.
std::string refusal(bool deterministic, Index left) {
  GpuShare ranks[] = {{.needed = 5000, .left = 5000}, {.needed = 4096, .left = left}};
  std::string("activations 3.00 KiB, parameters 1.00 KiB").copy(ranks[1].owners.data(), ranks[1].owners.size() - 1);
  try {
    require_gpu_memory(ranks, plan_of(deterministic));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GpuMemory, ARunThatDoesNotFitIsToldWhatTakesLess) {
  EXPECT_EQ(refusal(true, 4096), "");
  const std::string text =
      "train.micro_batch = 6: rank 1 takes 4.00 KiB (activations 3.00 KiB, parameters 1.00 KiB) of its GPU, where 2.00 "
      "KiB are left beside what other programs hold: must fit; use a smaller train.micro_batch, more of parallel.tp or "
      "parallel.pp, a smaller model";
  EXPECT_EQ(refusal(false, 2048), text);
  EXPECT_EQ(refusal(true, 2048), text + ", or train.deterministic = false, whose attention takes up to 96.00 MiB less");
}

}  // namespace
}  // namespace megalith::train
