// BERT and its fine-tuning on a GPU, against the CPU and from graphs.
#include "megalith/train/run_batches.h"

#include "tests/gpu/gpu_plan.h"
#include "tests/gpu/one_rank_run.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/task_sets.h"

namespace megalith {
namespace {

using support::OneRankRun;

/// Post-norm models have the erf form of GELU and no order loss, so both forms of all three run.
struct BertForm {
  const char* placement;
  Index head_dim;  ///< of 5 own kernels compute attention, of 64 cuDNN
  double dropout;
};

void PrintTo(const BertForm& form, std::ostream* out) {
  *out << form.placement << "-norm, head_dim " << form.head_dim << ", dropout " << form.dropout;
}

void put_form(const BertForm& form, config::RunConfig& c) {
  c.model.family = "bert";
  c.model.hidden_size = 4 * form.head_dim;
  c.model.ffn_hidden_size = 6 * form.head_dim;
  c.model.dropout = c.model.attention_dropout = form.dropout;
  c.model.norm_placement = form.placement;
  // At the small models' rate a wide one's losses jump, and the last bits of a gradient then move them by 1e-5 (fp32
  // beside fp64 on a CPU); at this one by 5e-8.
  if (form.head_dim > 5) c.optimizer.lr = 3e-4, c.optimizer.min_lr = 3e-5;
  if (c.model.norm_placement != "post") return;
  c.model.activation = "gelu_erf";
  c.bert.order = "none";
}

config::RunPlan bert_plan_on(Device device, const std::string& precision, const BertForm& form) {
  config::RunConfig c = support::small_config({}, "fp32", 12);
  put_form(form, c);
  c.bert.mask_fraction = 0.5;
  config::RunPlan plan = config::resolve(c);
  plan.device = device;
  plan.train.precision = precision;
  return plan;
}

class GpuBert : public ::testing::TestWithParam<BertForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, GpuBert,
                         ::testing::Values(BertForm{"pre", 5, 0}, BertForm{"pre", 64, 0.1}, BertForm{"pre", 64, 0},
                                           BertForm{"post", 5, 0.1}, BertForm{"post", 64, 0}));

TEST_P(GpuBert, Fp32TrainsAsOnTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  const OneRankRun cpu = support::train_one_rank(bert_plan_on(Device::cpu, "fp32", GetParam()));
  const OneRankRun gpu = support::train_one_rank(bert_plan_on(Device::cuda, "fp32", GetParam()));
  EXPECT_NEAR(gpu.losses[0], cpu.losses[0], 1e-6 * cpu.losses[0]);
  EXPECT_NEAR(gpu.norms[0], cpu.norms[0], 1e-5 * cpu.norms[0]);
  EXPECT_LT(support::worst_gradient(gpu, cpu), 1e-5);
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 1e-5 * cpu.losses[i]) << i;
  EXPECT_NEAR(gpu.evaluated, cpu.evaluated, 1e-5 * cpu.evaluated);
  support::expect_planned_memory(gpu, bert_plan_on(Device::cuda, "fp32", GetParam()));
}

// The bands of tests/gpu/model_test.cpp.
TEST_P(GpuBert, LowPrecisionFollowsFp32) {
  MEGALITH_NEEDS_GPUS(1);
  const OneRankRun want = support::train_one_rank(bert_plan_on(Device::cpu, "fp32", GetParam()));
  const OneRankRun got = support::train_one_rank(bert_plan_on(Device::cuda, "bf16", GetParam()));
  EXPECT_LT(support::worst_gradient(got, want), 0.04);
  EXPECT_NEAR(got.losses[0], want.losses[0], 1e-3 * want.losses[0]);
  EXPECT_LT(support::mean_loss_error(got, want), 2e-3);
  EXPECT_NEAR(got.evaluated, want.evaluated, 4e-3 * want.evaluated);
}

std::unique_ptr<support::GraphRun> watched_run(const config::RunPlan& plan) {
  auto into = std::make_unique<support::GraphRun>();
  comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) {
    support::train_rank(world, plan, *into, [](train::Engine&, Index) {});
  });
  return into;
}

void expect_graphs_as_eager(const support::Grid& grid) {
  for (const char* placement : {"pre", "post"}) {
    config::RunConfig c = support::small_config(grid, "bf16", 11);
    put_form({placement, 64, 0.1}, c);
    c.model.seq_len = 128;
    c.train.global_batch = 16;
    c.train.micro_batch = 4;
    c.device.type = "cuda";
    const config::RunPlan plan = config::resolve(c);
    const std::unique_ptr<support::GraphRun> eager = watched_run(plan);
    for (const support::GraphWay& way : support::kGraphWays) {
      SCOPED_TRACE(str(placement, "-norm, ", way.name));
      support::expect_same(*watched_run(support::with_graphs(plan, way, 2)), *eager);
    }
  }
}

TEST(GpuBertGraphs, HaveTheBitsOfEagerSteps) {
  MEGALITH_NEEDS_GPUS(1);
  expect_graphs_as_eager({});
}

TEST(GpuBertGraphs, HaveTheBitsOfEagerStepsOnSeveralGpus) {
  MEGALITH_NEEDS_GPUS(2);
  for (const support::Grid& grid : {support::Grid{.tp = 2}, support::Grid{.pp = 2}, support::Grid{.dp = 2}}) {
    SCOPED_TRACE(grid.name());
    expect_graphs_as_eager(grid);
  }
}

/// Losses of a fine-tuning with that head.
OneRankRun task_run_on(Device device, const std::string& precision, const std::string& task) {
  const support::TaskSets sets;
  config::RunConfig c = support::small_config({}, "fp32", 1);
  put_form({"pre", 64, 0}, c);
  c.bert = {};
  sets.put_keys(task, c);
  c.model.num_layers = 2;
  c.train.micro_batch = 4;
  c.optimizer.lr = 3e-4;
  // A bias of the last norm adds the same to the numbers of all tokens of a span: its gradient is rounding alone.
  if (task == "squad2") c.model.norm = "rms";
  config::RunPlan plan = config::resolve(c);
  const auto set = sets.open(plan);
  config::set_samples(set->count(), plan);
  plan.device = device;
  plan.train.precision = precision;
  return support::train_one_rank(plan, train::TaskTrainBatches(*set, plan.train.seed, plan.train.global_batch));
}

// Gradients of RACE are differences between four sequences: in fp32 the CPU's own are up to 1.05e-5 from fp64.
TEST(GpuTask, TrainsAsOnTheCpu) {
  MEGALITH_NEEDS_GPUS(1);
  for (const char* task : {"mnli", "race", "squad2"}) {
    SCOPED_TRACE(task);
    const OneRankRun cpu = task_run_on(Device::cpu, "fp32", task), gpu = task_run_on(Device::cuda, "fp32", task);
    EXPECT_LT(support::worst_gradient(gpu, cpu), 3e-5);
    EXPECT_LT(support::mean_loss_error(gpu, cpu), 1e-4);
    EXPECT_NEAR(task_run_on(Device::cuda, "bf16", task).losses[0], cpu.losses[0], 2e-3 * cpu.losses[0]);
  }
}

}  // namespace
}  // namespace megalith
