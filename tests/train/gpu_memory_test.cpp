#include "megalith/train/gpu_memory.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/train/attention_facts.h"

#include "tests/train/small_run.h"

namespace megalith::train {
namespace {

constexpr ops::AttentionBuild kWithoutCuda = {}, kWithoutCudnn = {.has_cuda = true},
                              kWithCudnn = {.has_cuda = true, .has_cudnn = true};

config::RunPlan plan_of(bool deterministic) {
  config::RunPlan plan = support::small_plan({.tp = 2}, "fp32");
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
  for (const ops::AttentionBuild& build : {kWithCudnn, kWithoutCuda}) {
    EXPECT_EQ(deterministic_attention_bytes(plan_of(true), build), Index{6} * 8 * 1024 * 1024 * 2);
    EXPECT_EQ(deterministic_attention_bytes(plan_of(false), build), 0);
  }
  EXPECT_EQ(deterministic_attention_bytes(plan_of(true), kWithoutCudnn), 0);
  config::RunPlan plan = plan_of(true);
  plan.model.seq_len = 1000;  // its tiles have 128 queries and keys
  EXPECT_EQ(deterministic_attention_bytes(plan, kWithCudnn), Index{6} * 8 * 1024 * 1024 * 2);
  const auto in_a_plan = [](auto&& change) {
    config::RunPlan changed = plan_of(true);
    change(changed);
    return deterministic_attention_bytes(changed, kWithCudnn);
  };
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.train.precision = "fp32"; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.attention_dropout = 0.1; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.hidden_size = 16 * 264; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.model.hidden_size = 16 * 60; }), 0);
  EXPECT_EQ(in_a_plan([](config::RunPlan& p) { p.device = Device::cpu; }), 0);
}

TEST(OwnAttention, HasAReasonThatNamesTheSetting) {
  const auto reason = [](auto&& change) {
    config::RunPlan plan = plan_of(true);
    change(plan);
    const std::string text = own_attention_reason(plan, kWithCudnn);
    EXPECT_EQ(own_attention_reason(plan, kWithoutCuda), text);
    EXPECT_EQ(own_attention_reason(plan, kWithoutCudnn), text) << "cuDNN would not help";
    return text;
  };
  EXPECT_EQ(reason([](config::RunPlan& p) { p.train.precision = "fp32"; }).find("train.precision = fp32: "), 0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.attention_dropout = 0.1; }).find("model.attention_dropout = 0.1: "),
            0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.hidden_size = 16 * 264; }).find("heads of 264: "), 0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.hidden_size = 16 * 60; }).find("heads of 60: "), 0u);
  EXPECT_EQ(reason([](config::RunPlan& p) { p.model.seq_len = 1; }).find("model.seq_len = 1: "), 0u);
  config::RunPlan widest = plan_of(true);
  widest.model.hidden_size = 16 * 256;
  EXPECT_EQ(own_attention_reason(widest, kWithCudnn), "");
  EXPECT_EQ(reason([](config::RunPlan& p) {
              p.train.precision = "fp32";
              p.device = Device::cpu;
            }),
            "");
}

TEST(OwnAttention, OfABuildWithoutCudnnSaysHowToGetIt) {
  for (const bool deterministic : {false, true}) {
    config::RunPlan plan = plan_of(deterministic);
    EXPECT_EQ(own_attention_reason(plan, kWithCudnn), "");
    EXPECT_EQ(own_attention_reason(plan, kWithoutCuda), "") << "plans for a build with cuDNN";
    EXPECT_EQ(own_attention_reason(plan, kWithoutCudnn),
              "this build has no cuDNN: install cuDNN 9 and the cudnn-frontend headers (scripts/install fetches the "
              "latter), then configure and build again");
    plan.device = Device::cpu;
    EXPECT_EQ(own_attention_reason(plan, kWithoutCudnn), "");
  }
}

TEST(AttentionKernels, AnotherLibraryIsToldOnResume) {
  EXPECT_EQ(changed_attention("", "forward cuDNN 9.14.0 eng1"), "") << "the checkpoint does not know";
  EXPECT_EQ(changed_attention("forward cuDNN 9.14.0 eng1", ""), "") << "a run on CPUs";
  EXPECT_EQ(changed_attention("forward cuDNN 9.14.0 eng1", "forward cuDNN 9.14.0 eng1"), "");
  EXPECT_EQ(changed_attention("forward cuDNN 9.14.0 eng1", "forward cuDNN 9.19.0 eng1"),
            "attention runs by forward cuDNN 9.19.0 eng1: the checkpoint was trained by forward cuDNN 9.14.0 eng1; "
            "results may differ in the last bits from an uninterrupted run");
  config::RunPlan plan = plan_of(true);
  plan.device = Device::cpu;
  EXPECT_EQ(attention_kernels(plan), "");
  EXPECT_EQ(refused_attention(plan), "");
}

/// The refusal of two ranks, where the second takes 4 KiB and has `left`.
std::string refusal(bool deterministic, Index left, const std::string& recompute = {}) {
  GpuShare ranks[] = {{.needed = 5000, .left = 5000}, {.needed = 4096, .left = left}};
  std::string("activations 3.00 KiB, parameters 1.00 KiB").copy(ranks[1].owners.data(), ranks[1].owners.size() - 1);
  try {
    require_gpu_memory(ranks, plan_of(deterministic), recompute);
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
  EXPECT_EQ(refusal(false, 2048, ", or recompute.mode = full"), text + ", or recompute.mode = full");
  const std::string without = ", or train.deterministic = false, whose attention takes up to 96.00 MiB less";
  const bool is_smaller = deterministic_attention_bytes(plan_of(true)) > 0;  // not in a build with CUDA without cuDNN
  EXPECT_EQ(refusal(true, 2048), is_smaller ? text + without : text);
}

}  // namespace
}  // namespace megalith::train
