// Memory that a step has released is nobody's: filled with NaN at once, in eager steps and in ones from graphs, it
// changes no bit of the gradients. Of dense layers, and of experts with clones.
#include <algorithm>
#include <cstring>
#include <map>

#include "megalith/capture/step_graph.h"
#include "megalith/ops/init.h"
#include "megalith/ops/step_end.h"

#include "tests/train/small_run.h"

namespace megalith {
namespace {

using support::Grid;

enum class Way : std::uint8_t { eager, per_microbatch, per_slot, iteration };
enum class Released : std::uint8_t { kept, poisoned };

/// A stage whose passes are followed by what they release. Scratch: by every pass. By a backward also the slot's
/// activations, the input that its forward was given, and the gradient that it was given.
class ReleasingStage final : public pipeline::Stage {
 public:
  ReleasingStage(model::Stage& stage, Released released) : stage_(stage), released_(released) {
    const pipeline::LoweredSchedule& schedule = stage.schedule();
    const auto slot_bytes = [&](std::size_t pool) {
      if (schedule.slot_policy == pipeline::SlotPolicy::per_chunk)
        return stage.plan_of(static_cast<int>(pool)).saved_bytes;
      Index largest = 0;
      for (int chunk = 0; chunk < static_cast<int>(stage.chunks().size()); ++chunk)
        largest = std::max(largest, stage.plan_of(chunk).saved_bytes);
      return largest;
    };
    std::byte* begin = stage.work().data();
    for (std::size_t pool = 0; pool < schedule.num_slots.size(); ++pool) {
      slots_.emplace_back();
      for (int slot = 0; slot < schedule.num_slots[pool]; ++slot, begin += slot_bytes(pool))
        slots_.back().push_back(bytes(begin, slot_bytes(pool)));
    }
    EXPECT_EQ(begin, stage.scratch());
    scratch_ = bytes(begin, stage.work().data() + stage.work().size() - begin);
  }

  void set_step_state(Exec& ex, int chunk, int microbatch, int slot) override {
    stage_.set_step_state(ex, chunk, microbatch, slot);
  }
  void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) override {
    stage_.forward(ex, chunk, slot, input, output);
    inputs_[{chunk, slot}] = input;
    release(ex, scratch_);
  }
  void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                const pipeline::BackwardTurn& turn) override {
    stage_.backward(ex, chunk, slot, output_grad, input_grad, turn);
    const std::size_t pool = slots_.size() == 1 ? 0 : static_cast<std::size_t>(chunk);
    for (const Tensor& memory :
         {scratch_, slots_[pool][static_cast<std::size_t>(slot)], inputs_[{chunk, slot}], output_grad})
      release(ex, memory);
  }
  void gather_params(Exec& ex, int chunk) override { stage_.gather_params(ex, chunk); }
  void reduce_grads(Exec& ex) override {
    stage_.reduce_grads(ex);
    stage_.await_all_grads(ex);
  }

 private:
  static Tensor bytes(std::byte* begin, Index count) { return {begin, {count}, DType::u8}; }
  void release(Exec& ex, const Tensor& memory) const {
    if (released_ == Released::kept || !memory) return;
    ex.run({.name = "release", .reads = {}, .writes = {memory}},
           [memory](Exec&, Stream) { std::memset(memory.raw(), 0xff, static_cast<std::size_t>(memory.bytes())); });
  }

  model::Stage& stage_;
  Released released_;
  std::vector<std::vector<Tensor>> slots_;  // of each pool
  Tensor scratch_;
  std::map<std::pair<int, int>, Tensor> inputs_;
};

model::StageConfig stage_config(const config::RunPlan& plan, Way way) {
  model::StageConfig config{
      .model = plan.model,
      .chunks = plan.chunks,
      .group_size = plan.group_size,
      .sequence_parallel = plan.sequence_parallel ? nn::SequenceParallel::on : nn::SequenceParallel::off,
      .global_batch = plan.train.global_batch,
      .micro_batch = plan.train.micro_batch,
      .seed = plan.train.seed,
      .policy = plan.train.policy()};
  if (way == Way::iteration) config.input_uploads = model::InputUploads::whole_step;
  // Pieces also where nothing captures them: they add first gradients to zeros, whose bits are other than a product's.
  if (way == Way::per_microbatch) config.capture = {{.dense = {{0}, {2}}}, model::BoundaryBuffers::messages};
  if (way == Way::per_slot) {
    config.capture = {{.dense = {{0}, {2}}}, model::BoundaryBuffers::fixed};
    config.instances = model::CaptureInstance::slot;
  }
  return config;
}

struct Passes {
  std::vector<double> losses;   ///< of each step, summed over what rank 0's stage has
  support::Gathered gradients;  ///< of the last step
};

/// Forward and backward passes of five steps, from graphs from the third on.
void run_rank(comm::World& world, const config::RunPlan& plan, Way way, Released released, Passes& out) {
  constexpr Index kSteps = 5, kWarmup = 2;
  Exec ex;
  MemoryLedger ledger(Device::cpu);
  const comm::Mesh mesh = comm::make_mesh(world, plan.grid);
  model::Stage stage(stage_config(plan, way), mesh);
  pipeline::Executor executor(stage.schedule(), mesh.pp, {stage.boundary_shape(), plan.train.policy().compute});
  stage.allocate(ledger);
  executor.allocate(ledger);
  const Buffer scalars = ledger.take("step scalars", kAlignment);
  const Tensor optimizer_state = scalars.view({sizeof(ops::OptimizerState)}, DType::u8);
  const ops::OptimizerState initial;
  std::memcpy(optimizer_state.raw(), &initial, sizeof initial);
  for (const ParamBuffer& buffer : stage.params().buffers()) {
    for (const Param& param : buffer.params())
      ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.value, plan.train.seed);
  }

  ReleasingStage releasing(stage, released);
  capture::StepGraph step_graph("training", way == Way::iteration ? kWarmup : kSteps);
  GraphCache layer_graphs;
  layer_graphs.start("training", ledger.memory());
  if (way == Way::per_microbatch || way == Way::per_slot) stage.run_segments_from(layer_graphs);
  const support::HashedBatches source(plan.model.vocab_size);
  for (Index step = 0; step < kSteps; ++step) {
    using State = GraphCache::State;
    layer_graphs.set_state(step < kWarmup ? State::eager : step == kWarmup ? State::capturing : State::replaying);
    stage.load(ex, nn::Mode::train, source, step * plan.train.global_batch,
               {.step = static_cast<std::uint64_t>(step), .loss_scale = 1.0 / 64}, optimizer_state);
    step_graph.run(ex, ledger.memory(), [&] {
      stage.begin(ex);
      executor.run(ex, releasing);
    });
    if (step == kWarmup) layer_graphs.prepare(ex);
    if (mesh.last_stage() && mesh.tp_rank() == 0 && mesh.dp_rank() == 0)
      out.losses.push_back(stage.loss_sums().data<double>()[0]);
  }
  support::put_params(out.gradients, stage, true);
}

class ReleasedMemory : public ::testing::TestWithParam<std::tuple<Grid, Way>> {};

void expect_nobody_reads_it(const config::RunPlan& plan, Way way) {
  Passes kept, poisoned;
  for (const Released released : {Released::kept, Released::poisoned}) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      run_rank(world, plan, way, released, released == Released::kept ? kept : poisoned);
    });
  }
  EXPECT_EQ(kept.losses.size(), 5u);
  EXPECT_EQ(poisoned.losses, kept.losses);
  EXPECT_EQ(poisoned.gradients.tensors(), kept.gradients.tensors());
}

TEST_P(ReleasedMemory, IsReadByNobody) {
  const auto& [grid, way] = GetParam();
  expect_nobody_reads_it(support::small_plan(grid, "fp32"), way);
}

class ReleasedMemoryOfExperts : public ReleasedMemory {};

/// Also that of expert rows, of their lists and of clones, with ep 2.
TEST_P(ReleasedMemoryOfExperts, IsReadByNobody) {
  const auto& [grid, way] = GetParam();
  config::RunConfig c = support::small_config(grid, "fp32");
  c.parallel.ranks = 2 * grid.ranks();
  c.parallel.ep = 2;
  c.moe.num_experts = 4;
  c.moe.top_k = 2;
  c.moe.ffn_hidden_size = 12;
  c.moe.shared_ffn_hidden_size = 8;
  for (const Index slots : {0, 2}) {
    SCOPED_TRACE(str(slots, " slots"));
    c.moe.echo.slots = slots;
    c.moe.echo.min_pairs = 0;
    expect_nobody_reads_it(config::resolve(c), way);
  }
}

constexpr Grid kMemoryGrids[] = {{.tp = 1},
                                 {.pp = 2},
                                 {.pp = 4},
                                 {.tp = 2, .pp = 2},
                                 {.pp = 2, .chunks = 2},
                                 {.pp = 2, .chunks = 4},
                                 {.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}};

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Grid, Way>>& test) {
  constexpr const char* kNames[] = {"eager", "per_microbatch", "per_slot", "iteration"};
  return std::get<0>(test.param).name() + "_" + kNames[static_cast<int>(std::get<1>(test.param))];
}

INSTANTIATE_TEST_SUITE_P(All, ReleasedMemory,
                         ::testing::Combine(::testing::ValuesIn(kMemoryGrids),
                                            ::testing::Values(Way::eager, Way::per_microbatch, Way::per_slot,
                                                              Way::iteration)),
                         name_of_case);
constexpr Grid kGridsOfExperts[] = {{}, {.pp = 2}, {.pp = 2, .chunks = 2}};
INSTANTIATE_TEST_SUITE_P(All, ReleasedMemoryOfExperts,
                         ::testing::Combine(::testing::ValuesIn(kGridsOfExperts),
                                            ::testing::Values(Way::eager, Way::iteration)),
                         name_of_case);

}  // namespace
}  // namespace megalith
