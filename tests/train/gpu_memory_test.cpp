#include "megalith/train/gpu_memory.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

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
  plan.model.attention_dropout = 0;
  return plan;
}

TEST(GpuMemory, SumsAreKeptApartByTheDeterministicPassAlone) {
  EXPECT_EQ(apart_sums_bytes(plan_of(true)), Index{6} * 8 * 1024 * 1024 * 2);
  EXPECT_EQ(apart_sums_bytes(plan_of(false)), 0);
  config::RunPlan plan = plan_of(true);
  plan.train.precision = "fp32";
  EXPECT_EQ(apart_sums_bytes(plan), 0) << "our own kernel has no such sums";
  plan = plan_of(true);
  plan.model.attention_dropout = 0.1;
  EXPECT_EQ(apart_sums_bytes(plan), 0) << "our own kernel";
  plan = plan_of(true);
  plan.device = Device::cpu;
  EXPECT_EQ(apart_sums_bytes(plan), 0);
}

std::string refusal(bool deterministic, Index left) {
  try {
    require_gpu_memory(plan_of(deterministic), {{"activations", 3072}, {"parameters", 1024}}, left);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GpuMemory, ARunThatDoesNotFitIsToldWhatTakesLess) {
  EXPECT_EQ(refusal(true, 4096), "");
  const std::string text =
      "train.micro_batch = 6: a rank takes 4.00 KiB (activations 3.00 KiB, parameters 1.00 KiB), "
      "its GPU has 4.00 KiB left: must fit; use a smaller train.micro_batch, more of parallel.tp or "
      "parallel.pp, a smaller model";
  EXPECT_EQ(refusal(false, 4095), text);
  EXPECT_EQ(refusal(true, 4095), text +
                                     ", or train.deterministic = false, whose attention takes up to 96.00 MiB less: 2 "
                                     "bytes for every query and key of a rank's heads");
}

}  // namespace
}  // namespace megalith::train
