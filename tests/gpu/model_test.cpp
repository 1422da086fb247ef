#include <algorithm>
#include <cmath>
#include <optional>

#include "megalith/eval/decoder.h"
#include "megalith/eval/inference_model.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/eval/whole_model.h"
#include "tests/gpu/one_rank_run.h"

namespace megalith {
namespace {

using support::worst_gradient;
using Record = support::OneRankRun;

Record train(const config::RunPlan& plan) { return support::train_one_rank(plan); }

config::RunPlan plan_on(Device device, const std::string& precision, Index head_dim, double dropout) {
  config::RunPlan plan = support::small_plan({}, precision == "fp64" ? "fp64" : "fp32", 20);
  plan.device = device;
  plan.train.precision = precision;
  if (precision == "fp16") plan.train.scaling = {.initial = 65536};
  plan.model.hidden_size = 4 * head_dim;
  plan.model.ffn_hidden_size = 6 * head_dim;
  plan.model.dropout = plan.model.attention_dropout = plan.model.embedding_dropout = dropout;
  return plan;
}

class GpuModel : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Dropout, GpuModel, ::testing::Values(0.0, 0.1));

TEST_P(GpuModel, Fp32TrainsAsOnTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index head_dim : {5, 64}) {
    const Record cpu = train(plan_on(Device::cpu, "fp32", head_dim, GetParam()));
    const Record gpu = train(plan_on(Device::cuda, "fp32", head_dim, GetParam()));
    EXPECT_NEAR(gpu.losses[0], cpu.losses[0], 1e-6 * cpu.losses[0]);
    EXPECT_NEAR(gpu.norms[0], cpu.norms[0], 1e-6 * cpu.norms[0]);
    EXPECT_LT(worst_gradient(gpu, cpu), 1e-5);
    for (std::size_t i = 0; i < cpu.losses.size(); ++i)
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 1e-5 * cpu.losses[i]) << i;
    EXPECT_NEAR(gpu.evaluated, cpu.evaluated, 1e-5 * cpu.evaluated);
    support::expect_planned_memory(gpu, plan_on(Device::cuda, "fp32", head_dim, GetParam()));
  }
}

// bf16 keeps 8 bits: activations carry errors of 2^-9 each; f16 11 bits. What tells of a wrong op are the first step's
// loss and gradients. After that, steps as large as these (the third loses what the first two have won) multiply any
// rounding: the CPU's own fp16 run differed from fp32 by 4.5e-5 on one machine and 3.5e-4 on another there, by 1e-4 on
// either side of it. So later losses are compared in the mean.
TEST_P(GpuModel, LowPrecisionFollowsFp32) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index head_dim : {5, 64}) {
    const Record want = train(plan_on(Device::cpu, "fp32", head_dim, GetParam()));
    for (const auto& [precision, loss_tolerance, gradient_tolerance] :
         {std::tuple("bf16", 2e-3, 0.04), std::tuple("fp16", 2.5e-4, 0.005)}) {
      SCOPED_TRACE(::testing::Message() << precision << ", head_dim " << head_dim);
      const Record got = train(plan_on(Device::cuda, precision, head_dim, GetParam()));
      EXPECT_LT(worst_gradient(got, want), gradient_tolerance);
      ASSERT_EQ(got.losses.size(), want.losses.size());
      EXPECT_NEAR(got.losses[0], want.losses[0], 0.4 * loss_tolerance * want.losses[0]);
      EXPECT_LT(support::mean_loss_error(got, want), loss_tolerance);
      EXPECT_NEAR(got.evaluated, want.evaluated, 2 * loss_tolerance * want.evaluated);
    }
  }
}

// Attention's backward pass may then sum in any order: the bits are others in each run, the numbers are not.
TEST(GpuModel, RunsThatNeedNotBeDeterministicFollowFp32) {
  MEGALITH_NEEDS_GPUS(1);
  config::RunPlan plan = plan_on(Device::cuda, "bf16", 64, 0);
  const Record want = train(plan_on(Device::cpu, "fp32", 64, 0)), deterministic = train(plan);
  plan.train.deterministic = false;
  const Record got = train(plan);
  EXPECT_EQ(got.losses[0], deterministic.losses[0]) << "forward passes have one order";
  EXPECT_LT(worst_gradient(got, want), 0.04);
  EXPECT_LT(worst_gradient(got, deterministic), 0.01);
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], deterministic.losses[i], 4e-3 * want.losses[i]) << i;
}

TEST(GpuModel, DeterministicRunsAreEqual) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan plan = plan_on(Device::cuda, "bf16", 64, 0.1);
  const Record a = train(plan), b = train(plan);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.gradients, b.gradients);
}

// What the driver counts includes the rounding of every buffer to whole pages, and what other tests have left behind:
// the run has seen that under "cuda context".
TEST(GpuModel, AllMemoryIsKnownBeforeTheFirstStep) {
  MEGALITH_NEEDS_GPUS(1);
  config::RunPlan plan = plan_on(Device::cuda, "bf16", 64, 0);
  plan.model.num_layers = 12;
  plan.model.hidden_size = 768;
  plan.model.num_heads = 12;
  plan.model.ffn_hidden_size = 3072;
  plan.model.seq_len = 256;
  plan.model.vocab_size = plan.model.padded_vocab_size = 50304;
  plan.train.global_batch = 32;
  plan.train.micro_batch = 16;
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const auto known = static_cast<double>(total(engine.taken_bytes()));
    const support::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    for (; progress.step < 3; ++progress.step) engine.step(source, progress, train::Stop::no);
    EXPECT_NEAR(static_cast<double>(device::memory_in_use(Device::cuda)), known, 0.02 * known);
  });
}

TEST(GpuModel, AWholeModelAnswersAsOnTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index head_dim : {5, 64}) {
    const config::RunPlan plan = plan_on(Device::cuda, "bf16", head_dim, 0.1);
    const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 2};
    const auto ask = [&](Device device) {
      std::vector<double> answers;
      comm::run_ranks(1, [&](comm::World& world) {
        eval::WholeModel model(plan.model, comm::make_mesh(world, grid::resolve({})), DType::f32, device);
        Exec host;
        model.fill_params([&](const TensorSlice& slice, const Tensor& values) {
          ops::initialise(host, {slice, Init::normal, 0.4}, values, 7);
        });
        answers = model.log_probabilities(ids);
        for (std::size_t length = 1; length <= ids.size(); ++length) {
          const std::span<const double> logits = model.last_logits(std::span(ids).first(length));
          answers.insert(answers.end(), logits.begin(), logits.end());
        }
      });
      return answers;
    };
    const std::vector<double> want = ask(Device::cpu), got = ask(Device::cuda);
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * largest) << i;
  }
}

/// ln p of the last tokens of texts of many lengths, which are passes of many shapes.
std::vector<double> scores_of_texts(const model::ModelConfig& model, Device device, int pp) {
  std::vector<std::vector<std::int32_t>> texts;
  for (const Index length : {3, 20, 70, 129, 200, 256, 257}) {
    std::vector<std::int32_t>& ids = texts.emplace_back();
    for (Index i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>((7 * i + length) % model.vocab_size));
  }
  std::vector<eval::Passage> passages;
  for (const std::vector<std::int32_t>& ids : texts)
    passages.push_back({ids, std::max<Index>(1, static_cast<Index>(ids.size()) - 40)});
  std::vector<double> scores;
  const grid::ResolvedSizes sizes = grid::resolve({.world_size = pp, .pp = pp});
  const auto score = [&](comm::World& world) {
    const eval::InferenceConfig config{
        .model = model, .dtype = DType::f32, .device = device, .batch = 2, .results = {{nn::Result::losses}}};
    eval::InferenceModel inference(config, world, comm::make_mesh(world, sizes),
                                   eval::count_shapes(eval::PassageSamples(passages, model.seq_len)));
    inference.allocate();
    Exec host;
    inference.fill_params(DType::f32, [&](const TensorSlice& slice, const Tensor& values) {
      ops::initialise(host, {slice, Init::normal, 0.4}, values, 7);
    });
    std::vector<eval::PassageScore> of_passages(passages.size());
    inference.score(passages, [&](Index passage, eval::PassageScore one) {
      of_passages[static_cast<std::size_t>(passage)] = std::move(one);
    });
    if (world.rank() != 0) return;
    for (const eval::PassageScore& one : of_passages)
      scores.insert(scores.end(), one.log_probabilities.begin(), one.log_probabilities.end());
  };
  if (device == Device::cuda && pp > 1)
    comm::run_gpu_ranks(pp, score);
  else
    comm::run_ranks(pp, score);
  return scores;
}

void expect_scores_of_the_cpu(int pp) {
  model::ModelConfig model = plan_on(Device::cuda, "fp32", 64, 0.1).model;
  model.seq_len = 256;
  const std::vector<double> want = scores_of_texts(model, Device::cpu, 1),
                            got = scores_of_texts(model, Device::cuda, pp);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * (1 + std::abs(want[i]))) << i;
}

TEST(GpuModel, ScoresTextsOfManyLengthsAsTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  expect_scores_of_the_cpu(1);
}

TEST(GpuModel, ScoresTextsInAPipelineOfGpus) {
  MEGALITH_NEEDS_GPUS(2);
  expect_scores_of_the_cpu(2);
}

struct DecoderSetting {
  Device device = Device::cpu;
  int tp = 1;
  DType dtype = DType::f32;
  std::optional<eval::Steps> steps = std::nullopt;  ///< empty: those of steps_for()
};

/// Passes over prompts and steps, of two slots beside an idle one.
std::vector<double> answers_of(const model::ModelConfig& model, const DecoderSetting& setting) {
  const auto [device, tp, dtype, steps] = setting;
  std::vector<double> answers;
  const grid::ResolvedSizes sizes = grid::resolve({.world_size = tp, .tp = tp});
  const auto answer = [&](comm::World& world) {
    eval::Decoder decoder({.model = model,
                           .dtype = dtype,
                           .device = device,
                           .slots = 3,
                           .capacity = model.seq_len,
                           .steps = steps.value_or(eval::steps_for(model, {device, dtype, sizes})),
                           .lengths = {3, 1}},
                          world, comm::make_mesh(world, sizes));
    decoder.allocate();
    Exec host;
    decoder.fill_params(DType::f32, [&](const TensorSlice& slice, const Tensor& values) {
      ops::initialise(host, {slice, Init::normal, 0.4}, values, 7);
    });
    const auto keep = [&](std::span<const double> logits) {
      if (world.rank() == 0) answers.insert(answers.end(), logits.begin(), logits.end());
    };
    decoder.warm_up();
    keep(decoder.start(0, std::vector<std::int32_t>{3, 1, 4}));
    keep(decoder.start(2, std::vector<std::int32_t>{2}));
    for (std::int32_t n = 0; n < 4; ++n) {
      const std::vector<std::int32_t> tokens = {n + 1, 0, 5 - n}, positions = {3 + n, 0, 1 + n};
      keep(decoder.step(tokens, positions));
    }
  };
  if (device == Device::cuda && tp > 1)
    comm::run_gpu_ranks(tp, answer);
  else
    comm::run_ranks(tp, answer);
  return answers;
}

void expect_answers_of_the_cpu(const model::ModelConfig& model, int tp) {
  const std::vector<double> want = answers_of(model, {}), got = answers_of(model, {.device = Device::cuda, .tp = tp});
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * largest) << i;
}

TEST(GpuModel, ADecoderAnswersAsOnTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index head_dim : {5, 64}) expect_answers_of_the_cpu(plan_on(Device::cuda, "bf16", head_dim, 0.1).model, 1);
  model::ModelConfig experts = plan_on(Device::cuda, "bf16", 64, 0.1).model;
  experts.moe.num_experts = 4, experts.moe.top_k = 2, experts.moe.ffn_hidden_size = 24;
  expect_answers_of_the_cpu(experts, 1);
}

TEST(GpuModel, ADecoderWithExpertsStepsFromAGraph) {
  MEGALITH_NEEDS_GPUS(1);
  model::ModelConfig model = plan_on(Device::cuda, "bf16", 64, 0.1).model;
  model.moe.num_experts = 4, model.moe.top_k = 2, model.moe.ffn_hidden_size = 24;
  DecoderSetting setting{.device = Device::cuda, .dtype = DType::bf16};
  const grid::ResolvedSizes one = grid::resolve({.world_size = 1});
  EXPECT_EQ(eval::steps_for(model, {Device::cuda, DType::f32, one}), eval::Steps::eager);
  if (eval::steps_for(model, {Device::cuda, DType::bf16, one}) == eval::Steps::eager)
    GTEST_SKIP() << "needs a Hopper GPU and a build with sm_90a";
  const std::vector<double> from_graph = answers_of(model, setting);
  setting.steps = eval::Steps::eager;
  EXPECT_EQ(answers_of(model, setting), from_graph);
}

TEST(GpuModel, ADecoderOfTwoGpusAnswersAsOneCpu) {
  MEGALITH_NEEDS_GPUS(2);
  expect_answers_of_the_cpu(plan_on(Device::cuda, "bf16", 64, 0.1).model, 2);
}

}  // namespace
}  // namespace megalith
