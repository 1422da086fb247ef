// Models with experts on GPUs: the CPU's numbers under its decisions, and the same bits in every run.
#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"
#include "megalith/ops/cuda/gemm_library.h"
#include "megalith/train/engine.h"

#include "tests/gpu/collect.h"
#include "tests/gpu/moe_plan.h"
#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::KeptDecisions;
using support::moe_models;
using support::MoeGrid;
using support::MoeModel;
using support::plan_on;
using support::relative_error;
using support::RunRecord;

class GpuMoe : public ::testing::TestWithParam<MoeModel> {};
INSTANTIATE_TEST_SUITE_P(All, GpuMoe, ::testing::ValuesIn(moe_models()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(GpuMoe, Fp32TrainsAsOnTheCpuUnderItsDecisions) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan on_cpu = plan_on(Device::cpu, {}, GetParam(), "fp32");
  RunRecord want;
  KeptDecisions decisions(on_cpu, nn::RouterDecisions::Use::record);
  support::run_moe(on_cpu, want, &decisions);
  for (const auto& [precision, first_loss, losses, gradients] :
       {std::tuple("fp32", 1e-6, 1e-5, 1e-5), std::tuple("bf16", 8e-4, 4e-3, 0.04)}) {
    SCOPED_TRACE(precision);
    const config::RunPlan plan = plan_on(Device::cuda, {}, GetParam(), precision);
    RunRecord got, again;
    support::run_replayed(plan, decisions, got);
    support::run_replayed(plan, decisions, again);
    EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), first_loss);
    EXPECT_LT(relative_error(got.losses, want.losses), losses);
    support::expect_gradients_agree({}, got, want, gradients);
    EXPECT_EQ(got.losses, again.losses) << "the same bits";
    EXPECT_EQ(got.parameters.tensors(), again.parameters.tensors());
  }
}

// Decisions of their own: few may turn by rounding.
TEST_P(GpuMoe, DecidesAsTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan on_cpu = plan_on(Device::cpu, {}, GetParam(), "fp32");
  const config::RunPlan on_gpu = plan_on(Device::cuda, {}, GetParam(), "fp32");
  KeptDecisions of_cpu(on_cpu, nn::RouterDecisions::Use::record), of_gpu = of_cpu;
  RunRecord cpu, gpu;
  support::run_moe(on_cpu, cpu, &of_cpu);
  support::run_moe(on_gpu, gpu, &of_gpu);
  std::size_t turned = 0;
  for (std::size_t i = 0; i < of_cpu.all().size(); ++i) turned += of_cpu.all()[i] != of_gpu.all()[i] ? 1 : 0;
  RecordProperty("turned", static_cast<int>(turned));
  EXPECT_LT(turned, of_cpu.all().size() / 200) << "of " << of_cpu.all().size();
}

/// A kernel that a step loads waits for the GPU, and so for other ranks, which may wait for this one: a pipeline hung.
TEST_P(GpuMoe, StepsAskTheLibraryForNoAlgorithm) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan plan = plan_on(Device::cuda, {}, GetParam(), "bf16");
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const auto asked = [&] { return engine.exec().backend<ops::cuda::GemmLibrary>().times_asked(); };
    const Index before = asked();
    const support::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    for (Index step = 0; step < 3; ++step) {
      engine.start_step(source, progress);
      engine.finish_step();
      progress = {step + 1, progress.samples + plan.train.global_batch};
    }
    engine.evaluate(source, plan.train.global_batch);
    EXPECT_EQ(asked(), before);
  });
}

/// Grids of two GPUs and more.
class GpuMoeGrid : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuMoeGrid,
                         ::testing::Values(MoeGrid{2, 1, 1, 2, 1}, MoeGrid{2, 1, 1, 1, 2}, MoeGrid{2, 2, 1, 1, 1},
                                           MoeGrid{2, 2, 1, 1, 2}, MoeGrid{2, 2, 1, 2, 1},
                                           MoeGrid{2, 2, 1, 2, 1, 1, nn::SequenceParallel::on}, MoeGrid{4, 1, 2, 2, 1},
                                           MoeGrid{4, 2, 1, 2, 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuMoeGrid, Fp32TrainsAsOnOneCpuUnderItsDecisions) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
  for (const MoeModel& model : moe_models()) {
    SCOPED_TRACE(model.name);
    const config::RunPlan on_cpu = plan_on(Device::cpu, {}, model, "fp32");
    RunRecord want, got;
    KeptDecisions decisions(on_cpu, nn::RouterDecisions::Use::record);
    support::run_moe(on_cpu, want, &decisions);
    decisions.start_replay();
    config::RunPlan plan = plan_on(Device::cuda, GetParam(), model, "fp32");
    plan.model.moe.replay = "kept";
    const support::HashedBatches source(plan.model.vocab_size);
    comm::run_gpu_ranks(GetParam().ranks, [&](comm::World& world) {
      support::train_rank(world, plan, source, got, &decisions);
      support::collect(world, got.gradients);
    });
    if (!comm::is_here(0)) continue;
    EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), 1e-6);
    EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
    support::expect_gradients_agree({}, got, want, 1e-5);
  }
}

std::unique_ptr<RunRecord> trained_from(const config::RunPlan& plan) {
  auto record = std::make_unique<RunRecord>();
  const support::HashedBatches source(plan.model.vocab_size);
  comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) {
    support::train_rank(world, plan, source, *record);
    support::collect(world, record->parameters);
  });
  return record;
}

TEST_P(GpuMoeGrid, PeersHaveTheBitsOfAllToAll) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
  if (!comm::ranks_read_tensors()) GTEST_SKIP() << "these processes share no memory of their GPUs";
  support::expect_peers_have_the_bits_of_all_to_all(GetParam(), trained_from);
}

TEST(GpuMoePeers, NeedGpusThatReachEachOthersTensors) {
  MEGALITH_NEEDS_GPU_RANKS(2);
  if (comm::ranks_are_processes()) GTEST_SKIP() << "processes cannot communicate after a failure";
  config::RunPlan plan = plan_on(Device::cuda, {2, 1, 1, 2, 1}, support::kSentAndRead[0], "bf16");
  plan.model.moe.dispatcher = nn::ExpertDispatcher::peer;
  plan.transfers = comm::Transport::kernels;
  try {
    trained_from(plan);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("has 2 ranks: must be at most 8, all on one host, on GPUs that NVLink connects, with "
                  "parallel.transfers = copy_engines, and parallel.share_gpu_memory = true if ranks are processes; use "
                  "moe.dispatcher = auto or all_to_all"),
        std::string::npos)
        << error.what();
  }
}

/// Experts that take all rows, read by their ranks too, and padded ones with shared experts beside them: all scopes
/// that are legal, and whole steps.
void expect_graphs_have_the_bits_of_eager_steps(const MoeGrid& grid) {
  using enum capture::Scope;
  constexpr MoeModel kModels[] = {{"All", [](config::RunConfig& c) { c.moe.pattern = "dm"; }},
                                  {"Read",
                                   [](config::RunConfig& c) {
                                     c.moe.dispatcher = "peer";
                                     support::fit_grouped_kernel(c);
                                   }},
                                  {"Padded", [](config::RunConfig& c) {
                                     c.moe.capacity = "pad";
                                     c.moe.capacity_factor = 1.25;
                                     c.moe.capacity_run = 8;
                                     c.moe.shared_ffn_hidden_size = 8;
                                     c.moe.shared_gate = true;
                                   }}};
  for (const MoeModel& model : kModels) {
    config::RunPlan plan = plan_on(Device::cuda, grid, model, "bf16");
    if (plan.model.moe.dispatcher == nn::ExpertDispatcher::peer && !comm::ranks_read_tensors()) continue;
    plan.train.steps = 12;
    const auto want = trained_from(plan);
    const auto expect_same = [&](const config::RunPlan& with_graphs) {
      const auto got = trained_from(with_graphs);
      EXPECT_EQ(got->losses, want->losses);
      EXPECT_EQ(got->evaluated, want->evaluated);
      EXPECT_EQ(got->parameters.tensors(), want->parameters.tensors());
    };
    for (const capture::ScopeSet& scopes :
         {capture::ScopeSet{moe_router}, {attn, moe_router, moe_preprocess}, {moe}, {}}) {
      if (capture::first_broken_rule(scopes, plan.run_facts())) continue;
      SCOPED_TRACE(str(model.name, " ", text(scopes)));
      config::RunPlan layers = plan;
      layers.graphs.mode = capture::GraphMode::layers;
      layers.graphs.scopes = scopes;
      expect_same(layers);
    }
    const std::string why_not = config::why_no_iteration(plan);
    if (plan.model.moe.dispatcher == nn::ExpertDispatcher::peer) {
      EXPECT_EQ(why_not, "") << "the device alone knows sizes";
    }
    if (!why_not.empty()) continue;
    SCOPED_TRACE(str(model.name, " whole steps"));
    plan.graphs.mode = capture::GraphMode::iteration;
    plan.graphs.optimizer = true;
    expect_same(plan);
  }
}

TEST(GpuMoeGraphs, HaveTheBitsOfEagerSteps) {
  MEGALITH_NEEDS_GPUS(1);
  expect_graphs_have_the_bits_of_eager_steps({});
}

TEST_P(GpuMoeGrid, GraphsHaveTheBitsOfEagerSteps) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
  expect_graphs_have_the_bits_of_eager_steps(GetParam());
}

}  // namespace
}  // namespace megalith
