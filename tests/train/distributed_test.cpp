// The distributed optimizer ([optimizer] distributed): the bits of a run without it, in every policy and on every grid,
// whatever a step does. After every step the values of other ranks' shards are spoilt, so that whoever reads them
// before they are gathered is seen.
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/small_run.h"

namespace megalith {
namespace {

using support::Grid;

constexpr Index kSteps = 8, kEvaluatedAt = 3;

/// What a run reports, by bytes: the loss of a step that overflowed may be NaN.
struct Reports {
  std::vector<double> numbers;
  std::vector<bool> skipped;
  checkpoint::Digest128 digest;  ///< of masters and moments at the end

  void add(const train::StepReport& step) {
    numbers.insert(numbers.end(), {step.loss, step.grad_norm, step.learning_rate, step.loss_scale});
    skipped.push_back(step.skipped);
  }
  bool same_numbers(const Reports& other) const {
    return numbers.size() == other.numbers.size() &&
           std::memcmp(numbers.data(), other.numbers.data(), numbers.size() * sizeof(double)) == 0;
  }
};

void spoil_values_of_others(ParamBuffer& params) {
  if (!params.is_sharded()) return;
  const Tensor& values = params.values();
  std::vector<std::byte> own(static_cast<std::size_t>(values.bytes()), std::byte{0xff});  // NaN in every dtype
  for (const OwnRange& range : params.own_ranges()) {
    const Index begin = range.in_whole * size_of(values.dtype());
    const Tensor kept = range.of_whole(values);
    std::memcpy(own.data() + begin, kept.raw(), static_cast<std::size_t>(kept.bytes()));
  }
  std::memcpy(values.raw(), own.data(), own.size());
}

config::RunPlan plan_of(const Grid& grid, const std::string& precision) {
  config::RunPlan plan = support::small_plan(grid, precision, kSteps);
  plan.optimizer.clip = 0.5;
  if (precision == "fp16") plan.train.scaling = {.initial = 0x1p26, .smallest = 1, .growth_interval = 2};
  return plan;
}

/// Steps [begin, end), resumed from `folder` unless begin is 0, saved there at the end.
Reports run(const config::RunPlan& plan, const io::Path& folder, Index begin, Index end) {
  Reports reports;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, *fs, folder);
    const support::HashedBatches source(plan.model.vocab_size);
    Reports mine;
    train::Progress progress;
    if (begin > 0) {
      const std::optional<train::Resumed> resumed = saver.resume();
      EXPECT_EQ(resumed.value().warnings, std::vector<std::string>());
      progress = resumed->progress;
    }
    for (Index step = begin; step < end; ++step) {
      mine.add(engine.step(source, progress, train::Stop::no));
      progress = {step + 1, progress.samples + plan.train.global_batch};
      spoil_values_of_others(engine.stage().params().dense());
      if (step + 1 == kEvaluatedAt) mine.numbers.push_back(engine.evaluate(source, plan.train.global_batch));
    }
    mine.digest = saver.save(progress);
    if (world.rank() == 0) reports = mine;
  });
  return reports;
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Grid, const char*>>& info) {
  return std::get<0>(info.param).name() + "_" + std::get<1>(info.param);
}

class DistributedOptimizer : public ::testing::TestWithParam<std::tuple<Grid, const char*>> {};

TEST_P(DistributedOptimizer, HasTheBitsOfThePlainOne) {
  const auto& [grid, precision] = GetParam();
  Grid whole = grid;
  whole.sharding = Sharding::none;
  const TempDir plain_dir, sharded_dir;
  const Reports plain = run(plan_of(whole, precision), plain_dir.path(), 0, kSteps);
  const Reports sharded = run(plan_of(grid, precision), sharded_dir.path(), 0, kSteps);
  EXPECT_TRUE(sharded.same_numbers(plain));
  EXPECT_EQ(sharded.digest.hex(), plain.digest.hex());
  const auto skips = std::ranges::count(plain.skipped, true);
  if (std::string_view(precision) == "fp16") {
    EXPECT_GT(skips, 0) << "some steps must overflow";
  }
  EXPECT_LT(skips, kSteps);
}

TEST_P(DistributedOptimizer, ResumesWhatThePlainOneSavedAndTheOtherWayRound) {
  const auto& [grid, precision] = GetParam();
  Grid whole = grid;
  whole.sharding = Sharding::none;
  constexpr Index kSavedAt = 4;
  const config::RunPlan plans[] = {plan_of(whole, precision), plan_of(grid, precision)};
  const TempDir dir;
  const Reports uninterrupted = run(plans[0], dir.path(), 0, kSteps);
  for (const int first : {0, 1}) {
    const TempDir saved;
    Reports joined = run(plans[first], saved.path(), 0, kSavedAt);
    const Reports tail = run(plans[1 - first], saved.path(), kSavedAt, kSteps);
    joined.numbers.insert(joined.numbers.end(), tail.numbers.begin(), tail.numbers.end());
    EXPECT_TRUE(joined.same_numbers(uninterrupted)) << first;
    EXPECT_EQ(tail.digest.hex(), uninterrupted.digest.hex()) << first;
  }
}

/// What this rank has sent so far, in elements, through all groups and operations.
Index elements_sent(const comm::World& world) {
  Index sum = 0;
  for (const comm::Group& group : world.groups()) {
    for (const comm::Counter& counter : group.counters().by_op) sum += counter.elements;
  }
  return sum;
}

/// A save and a resume gather nothing: every rank writes and reads what it holds. Ranks send each other names, sizes
/// and checksums of files, which are few elements beside the state's of a model that is not tiny.
void expect_no_state_is_sent(config::RunPlan plan) {
  plan.model.hidden_size *= 8;
  plan.model.ffn_hidden_size *= 8;
  const TempDir dir;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, *fs, dir.path());
    const Index few = engine.stage().params().dense().numel() / 4;
    const Index before = elements_sent(world);
    saver.save({});
    const Index saved = elements_sent(world);
    EXPECT_LT(saved - before, few);
    EXPECT_TRUE(saver.resume().has_value());
    const bool is_sharded = plan.optimizer.sharding != Sharding::none;
    const Index own_values = is_sharded ? 4 * few / plan.grid.dp : 0;  // gathered over dp, as at the end of a step
    EXPECT_LT(elements_sent(world) - saved, few + own_values);
  });
  io::StepFolder saved = io::published(*io::posix_fs(), dir.path()).back();
  const checkpoint::Manifest manifest = checkpoint::read_manifest(*io::posix_fs(), dir.path() / saved.name());
  EXPECT_EQ(std::ranges::count_if(manifest.files, [](const auto& file) { return !checkpoint::is_plain(file); }),
            plan.grid.world_size / (plan.optimizer.sharding == Sharding::none ? plan.grid.dp : 1))
      << "each rank that owns something wrote a shard";
}

TEST_P(DistributedOptimizer, SavesAndLoadsWithoutGatheringWhatOtherRanksHold) {
  const auto& [grid, precision] = GetParam();
  expect_no_state_is_sent(plan_of(grid, precision));
}

TEST(Saver, NoGridSendsStateToSaveOrLoad) {
  for (const Grid& grid : support::all_grids()) {
    SCOPED_TRACE(grid.name());
    expect_no_state_is_sent(plan_of(grid, "bf16"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DistributedOptimizer,
                         ::testing::Combine(::testing::ValuesIn(support::sharded_grids()),
                                            ::testing::Values("fp64", "fp32", "bf16", "fp16")),
                         name_of);

TEST(DistributedOptimizerAlone, OneDataParallelRankDoesNothingElse) {
  const config::RunPlan plain = support::small_plan({.tp = 2}, "bf16", 2);
  const config::RunPlan sharded = support::small_plan({.tp = 2, .sharding = Sharding::optimizer}, "bf16", 2);
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 2);
  const train::Engine engine(*world, sharded);
  EXPECT_EQ(engine.planned_bytes(), train::Engine(*world, plain).planned_bytes());
  const TempDir plain_dir, sharded_dir;
  EXPECT_TRUE(run(sharded, sharded_dir.path(), 0, 2).same_numbers(run(plain, plain_dir.path(), 0, 2)));
}

TEST(DistributedOptimizerMemory, HoldsMomentsAndMastersOfItsShardsOnly) {
  const auto planned = [](Sharding sharding, const char* precision) {
    const std::unique_ptr<comm::World> world = comm::dry_world(0, 4);
    const config::RunPlan plan = support::small_plan({.dp = 4, .sharding = sharding}, precision);
    return train::Engine(*world, plan).planned_bytes();
  };
  for (const char* precision : {"fp64", "fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const BytesByOwner whole = planned(Sharding::none, precision), sharded = planned(Sharding::optimizer, precision);
    EXPECT_EQ(4 * sharded.at("optimizer"), whole.at("optimizer"));
    const bool has_copy = whole.contains("parameter copies");
    EXPECT_EQ((has_copy ? 4 : 1) * sharded.at("parameters"), whole.at("parameters"));
    for (const char* same : {"gradients", "activations", "scratch"}) EXPECT_EQ(sharded.at(same), whole.at(same));
  }
}

}  // namespace
}  // namespace megalith
