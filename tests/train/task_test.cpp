#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/ops/init.h"
#include "megalith/train/run_batches.h"
#include "megalith/train/saver.h"

#include "tests/train/agreeing_runs.h"
#include "tests/train/task_sets.h"

// Fine-tuning: every form of head learns its task, and does so alike on every grid.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;
using support::TaskSets;

config::RunConfig task_config(const TaskSets& sets, const std::string& task, const Grid& grid = {}) {
  config::RunConfig c = support::small_config(grid, "fp64", 1);
  sets.put_keys(task, c);
  return c;
}

config::RunPlan task_plan(const config::RunConfig& c, Index samples) {
  config::RunPlan plan = config::resolve(c);
  config::set_samples(samples, plan);
  return plan;
}

/// Its figures on its own training set after so many epochs.
tasks::Figures learned(const TaskSets& sets, const std::string& task, Index epochs) {
  config::RunConfig c = task_config(sets, task);
  c.model.num_layers = 2;
  c.model.dropout = 0;
  c.task.epochs = epochs;
  c.train.precision = "fp32";
  c.train.micro_batch = 8;
  c.optimizer.lr = 2e-3;
  const auto set = sets.open(config::resolve(c)), scored = sets.open(config::resolve(c), tasks::SampleUse::scoring);
  const config::RunPlan plan = task_plan(c, set->count());
  tasks::Figures figures;
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const train::TaskTrainBatches source(*set, plan.train.seed, plan.train.global_batch);
    train::Progress progress;
    for (; progress.step < plan.train.steps; progress = {progress.step + 1, progress.samples + plan.train.global_batch})
      engine.step(source, progress, train::Stop::no);
    std::vector<float> numbers;
    engine.evaluate_losses(train::TaskHeldOutBatches(*scored), scored->count(), [&](std::span<const float> batch) {
      numbers.insert(numbers.end(), batch.begin(), batch.end());
    });
    figures = scored->figures(scored->predict(numbers));
  });
  return figures;
}

double figure(const tasks::Figures& figures, std::string_view name) {
  for (const auto& [key, value] : figures)
    if (key == name) return std::get<double>(value);
  return -1;
}

TEST(Task, LearnsSixtyFourExamplesOfEach) {
  const TaskSets sets;
  for (const char* task : {"mnli", "qqp", "race"}) EXPECT_EQ(figure(learned(sets, task, 40), "accuracy"), 1) << task;
  for (const char* task : {"squad1", "squad2"}) EXPECT_EQ(figure(learned(sets, task, 40), "exact"), 100) << task;
}

/// A run over both epochs of a grid.
std::unique_ptr<RunRecord> task_run(const TaskSets& sets, const config::RunConfig& c) {
  const auto set = sets.open(config::resolve(c));
  const config::RunPlan plan = task_plan(c, set->count());
  const train::TaskTrainBatches source(*set, plan.train.seed, plan.train.global_batch);
  auto record = std::make_unique<RunRecord>();
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, source, *record); });
  return record;
}

/// Two epochs of 6 steps, of which the last has 4 samples without a loss.
config::RunConfig grid_config(const TaskSets& sets, const std::string& task, const Grid& grid) {
  config::RunConfig c = task_config(sets, task, grid);
  c.train.global_batch = 12;
  c.model.num_layers = 4;
  // A bias of the last norm adds the same to the numbers of all tokens of a span: its gradient is rounding alone.
  if (task.starts_with("squad")) c.model.norm = "rms";
  return c;
}

TEST(Task, GridsAgreeWithOneRank) {
  const TaskSets sets;
  for (const char* task : {"mnli", "qqp", "race", "squad1", "squad2"}) {
    const std::unique_ptr<RunRecord> want = task_run(sets, grid_config(sets, task, {}));
    for (const Grid& grid :
         {Grid{.tp = 2, .pp = 2}, Grid{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = nn::SequenceParallel::on},
          Grid{.pp = 2, .dp = 2, .chunks = 2, .sharding = Sharding::optimizer}}) {
      SCOPED_TRACE(str(task, " on ", grid.name()));
      const std::unique_ptr<RunRecord> got = task_run(sets, grid_config(sets, task, grid));
      support::expect_fp64_agrees(*got, *want);
      support::expect_gradients_agree(grid, *got, *want, 1e-10);
    }
  }
}

TEST(Task, TheCutIntoMicrobatchesChangesNothing) {
  const TaskSets sets;
  for (const char* task : {"qqp", "squad2"}) {
    const std::unique_ptr<RunRecord> want = task_run(sets, grid_config(sets, task, {}));
    for (const Index micro_batch : {2, 4}) {
      config::RunConfig c = grid_config(sets, task, {});
      c.train.micro_batch = micro_batch;
      support::expect_fp64_agrees(*task_run(sets, c), *want);
    }
  }
}

/// A sample's tokens and labels.
std::vector<std::int32_t> contents(const tasks::TaskSet& set, const model::ModelConfig& model, Index samples,
                                   const model::BatchSource& source, Index first) {
  const model::BatchLayout layout(model::batch_shape(model, samples, set.config().seq_len));
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  const model::Batch batch = layout.on_host(block);
  source.fill(first, samples, batch);
  std::vector<std::int32_t> all(batch.tokens.begin(), batch.tokens.end());
  all.insert(all.end(), batch.labels.begin(), batch.labels.end());
  return all;
}

TEST(Task, AnEpochHasEachSampleOnceAndEndsWithSamplesWithoutALoss) {
  const TaskSets sets;
  config::RunConfig c = task_config(sets, "mnli");
  c.train.global_batch = 12;
  const auto set = sets.open(config::resolve(c));
  const config::RunPlan plan = task_plan(c, set->count());
  EXPECT_EQ(plan.train.steps, 12);
  EXPECT_EQ(plan.train.eval_interval, 6);
  EXPECT_EQ(plan.optimizer.decay_steps, 12);
  c.task.epochs = 20;
  EXPECT_EQ(task_plan(c, set->count()).optimizer.warmup_steps, 7) << "6 % of 120 steps";
  const train::TaskTrainBatches source(*set, plan.train.seed, plan.train.global_batch);
  const train::TaskHeldOutBatches in_order(*set);
  const auto sample = [&](const model::BatchSource& from, Index n) { return contents(*set, plan.model, 1, from, n); };
  std::vector<std::vector<std::int32_t>> first, second, all;
  for (Index n = 0; n < 64; ++n) {
    first.push_back(sample(source, n));
    second.push_back(sample(source, 72 + n));
    all.push_back(sample(in_order, n));
  }
  EXPECT_NE(first, second) << "each epoch has an order of its own";
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(all));
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(all));
  for (Index n = 64; n < 72; ++n) EXPECT_EQ(sample(source, n).back(), model::kNoTarget) << n;
  EXPECT_EQ(sample(in_order, 64).back(), model::kNoTarget);
}

TEST(Task, SamplesOfRaceHaveFourSequencesAndSquadsTwoLabels) {
  const TaskSets sets;
  const config::RunPlan race = config::resolve(task_config(sets, "race")),
                        squad = config::resolve(task_config(sets, "squad2"));
  const auto questions = sets.open(race), windows = sets.open(squad);
  const std::vector<std::int32_t> two = contents(*questions, race.model, 2, train::TaskHeldOutBatches(*questions), 0);
  EXPECT_EQ(two.size(), 2U * 4 * 16 + 2);
  EXPECT_EQ(two[two.size() - 2], 0);
  EXPECT_EQ(two.back(), 3);
  const std::vector<std::int32_t> spans = contents(*windows, squad.model, 3, train::TaskHeldOutBatches(*windows), 1);
  ASSERT_EQ(spans.size(), 3U * 16 + 6);
  // [CLS] who ? [SEP] W the W is here [SEP]: words before the answer move it on; the fourth question has none.
  EXPECT_THAT(std::vector(spans.end() - 6, spans.end()), ::testing::ElementsAre(6, 7, 0, 6, 7, 0));
}

/// The numbers that a dev score comes from, of all samples.
std::vector<float> dev_numbers(const TaskSets& sets, config::RunConfig c) {
  c.train.micro_batch = 2;
  const auto set = sets.open(config::resolve(c), tasks::SampleUse::scoring);
  const config::RunPlan plan = task_plan(c, set->count());
  std::vector<float> numbers;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.evaluate_losses(train::TaskHeldOutBatches(*set), set->count(), [&](std::span<const float> batch) {
      numbers.insert(numbers.end(), batch.begin(), batch.end());
    });
  });
  return numbers;
}

TEST(Task, TheLongerSentenceOfAPairLosesItsEnd) {
  const TaskSets sets;
  const TempDir dir;
  std::string words;
  for (int i = 0; i < 20; ++i) words += " bo";
  write_all(dir / "long.jsonl", R"({"sentence1": ")" + words + R"(", "sentence2": ")" + words +
                                    R"(", "label": "neutral"})" + "\n" + R"({"sentence1": ")" + words +
                                    R"(", "sentence2": "bo bo", "label": "neutral"})" + "\n");
  config::RunConfig c = task_config(sets, "mnli");
  c.data.train = std::vector<std::string>{(dir / "long.jsonl").string()};
  const config::RunPlan plan = config::resolve(c);
  const auto set = sets.open(plan);
  constexpr std::int32_t kSep = 3;
  for (const auto& [sample, end_of_first] : {std::pair<Index, Index>{0, 8}, {1, 12}}) {
    const std::vector<std::int32_t> tokens = contents(*set, plan.model, 1, train::TaskHeldOutBatches(*set), sample);
    EXPECT_EQ(std::ranges::find(tokens, kSep) - tokens.begin(), end_of_first) << sample;
    EXPECT_EQ(tokens.at(15), kSep) << sample;
  }
}

TEST(Task, TheDevScoreDoesNotDependOnTheGrid) {
  const TaskSets sets;
  const auto numbers_on = [&](const Grid& grid) { return dev_numbers(sets, task_config(sets, "squad2", grid)); };
  const std::vector<float> want = numbers_on({}), got = numbers_on({.tp = 2, .pp = 2, .dp = 2});
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
}

// Logits of padding are not compared.
TEST(Task, PaddingChangesNothing) {
  const TaskSets sets;
  for (const char* task : {"mnli", "race", "squad2"}) {
    SCOPED_TRACE(task);
    config::RunConfig c = task_config(sets, task);
    c.model.num_positions = 24;
    const std::vector<float> want = dev_numbers(sets, c);
    c.model.seq_len = 24;
    const std::vector<float> got = dev_numbers(sets, c);
    const std::size_t numbers = want.size() / 64, rows = std::string(task) == "squad2" ? 128 : 64,
                      width = 64 * numbers / rows;
    ASSERT_EQ(want.size(), rows * width);
    constexpr std::size_t kShortest = 9;  // tokens of a window of SQuAD: [CLS] who ? [SEP] the WORD is here [SEP]
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < std::min(width, kShortest); ++i)
        ASSERT_NEAR(got[row * (got.size() / rows) + i], want[row * width + i], 1e-6) << row << ", " << i;
  }
}

TEST(Task, ThePoolerIsThatOfTheCheckpointAndTheHeadComesFromTheSeed) {
  const TaskSets sets;
  const TempDir dir;
  config::RunConfig c = task_config(sets, "mnli"), bert = support::small_config({}, "fp64", 1);
  bert.model = c.model;
  bert.model.family = "bert";
  bert.train.seed = 7;
  c.train.seed = 8;
  const config::RunPlan of_bert = config::resolve(bert), plan = task_plan(c, 64);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine pretrained(world, of_bert), tuned(world, plan);
    pretrained.allocate();
    tuned.allocate();
    train::Saver(pretrained, of_bert, {1, 2}, *io::posix_fs(), dir.path()).save({});
    const std::vector<std::string> lines =
        train::Saver(tuned, plan, {1, 5}, *io::posix_fs(), dir / "unused").take_values(dir / "step_00000000");
    EXPECT_THAT(lines,
                ::testing::ElementsAre("the checkpoint has no head.classes.weight, head.classes.bias: from the seed"));
    const auto values = [](train::Engine& engine, const char* name) {
      const Tensor value = engine.stage().params().at(name).value;
      return std::vector<double>(value.data<double>(), value.data<double>() + value.numel());
    };
    EXPECT_EQ(values(tuned, "head.pooler.weight"), values(pretrained, "head.pooler.weight"));
    EXPECT_EQ(values(tuned, "layers.0.mlp.up.weight"), values(pretrained, "layers.0.mlp.up.weight"));
    const std::vector<double> head = values(tuned, "head.classes.weight");
    for (const std::uint64_t seed : {8, 7}) {
      std::vector<double> made(head.size());
      const Shape shape = {3, std::ssize(head) / 3};
      Exec host;
      ops::initialise(host, {TensorSlice::whole("head.classes.weight", shape), Init::normal, 0.02},
                      Tensor(made.data(), shape, DType::f64), seed);
      EXPECT_EQ(made == head, seed == 8);
    }
  });
}

}  // namespace
}  // namespace megalith
