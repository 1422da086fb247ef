#include "megalith/eval/inference_model.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/eval/whole_model.h"

namespace megalith::eval {
namespace {

constexpr Index kSeqLen = 70, kVocab = 61;
const std::vector<AskedResult> kLossesAndIds = {{nn::Result::losses}, {nn::Result::best_ids}};

struct Grid {
  int tp = 1, pp = 1, dp = 1, chunks = 1;
  int ranks() const { return tp * pp * dp; }
  std::string name() const { return str("tp", tp, "_pp", pp, "_dp", dp, "_chunks", chunks); }
};
constexpr Grid kGrids[] = {{.tp = 2},          {.tp = 4},
                           {.pp = 2},          {.pp = 4},
                           {.dp = 2},          {.pp = 2, .chunks = 2},
                           {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2, .dp = 2, .chunks = 2}};

model::ModelConfig small_model(model::ModelConfig config = {}) {
  config.num_layers = 4;
  config.hidden_size = 24;
  config.num_heads = 4;
  config.ffn_hidden_size = 32;
  config.seq_len = kSeqLen;
  config.vocab_size = kVocab;
  config.padded_vocab_size = 64;
  return config;
}

/// A value of a parameter, by name and global element, so that every grid has the same model.
void read_values(const TensorSlice& slice, const Tensor& values) {
  dispatch_wide(values.dtype(), "read_values", [&]<class T>() {
    const auto to = values.span<T>();
    for (Index i = 0; i < slice.local.numel(); ++i) {
      std::uint64_t hash = fnv1a(slice.name);
      Index rest = i;
      for (int d = slice.local.rank() - 1; d >= 0; --d) {
        hash = hash_combine(
            hash, static_cast<std::uint64_t>(slice.offset[static_cast<std::size_t>(d)] + rest % slice.local[d]));
        rest /= slice.local[d];
      }
      // Exact in f32, so that both precisions have the same model.
      const double value = static_cast<double>(static_cast<std::int32_t>(hash >> 40) - (1 << 23)) * 0x1p-24;
      to[static_cast<std::size_t>(i)] = static_cast<T>(value + (slice.local.rank() == 1 ? 0.5 : 0));
    }
  });
}

std::vector<std::int32_t> some_ids(Index count, Index seed) {
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(seed * 1000 + i)) % kVocab));
  return ids;
}

/// Texts of many lengths, and which of their tokens are targets.
struct Questions {
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<Passage> passages;
  PassCounts counts;

  Questions() {
    for (const Index length : {2, 3, 9, 33, 34, 40, 66, 71, 71, 71, 12, 70, 64, 65}) {
      const Index seed = static_cast<Index>(texts.size());
      texts.push_back(some_ids(length, seed));
      passages.push_back({texts.back(), seed % 3 == 0 ? 1 : length - 1 - seed % 2 * (length > 2 ? 1 : 0)});
    }
    counts = count_shapes(PassageSamples(passages, kSeqLen));
  }
};

struct Answers {
  std::vector<PassageScore> scores;
  std::vector<BytesByOwner> planned, taken;
};

Answers ask(const Grid& grid, const model::ModelConfig& model, const Questions& questions, InferenceConfig config) {
  Answers answers;
  answers.scores.resize(questions.passages.size());
  answers.planned.resize(static_cast<std::size_t>(grid.ranks()));
  answers.taken.resize(static_cast<std::size_t>(grid.ranks()));
  comm::run_ranks(grid.ranks(), [&](comm::World& world) {
    const comm::Mesh mesh =
        comm::make_mesh(world, grid::resolve({.world_size = grid.ranks(), .tp = grid.tp, .pp = grid.pp}));
    config.model = model;
    config.chunks = grid.chunks;
    InferenceModel inference(config, world, mesh, questions.counts);
    const auto rank = static_cast<std::size_t>(world.rank());
    answers.planned[rank] = inference.planned_bytes();
    inference.allocate();
    answers.taken[rank] = inference.taken_bytes();
    inference.fill_params(config.dtype, read_values);
    for (int times = 0; times < 2; ++times) {  // what one leaves behind would be seen in the next
      Index count = 0;
      inference.score(questions.passages, [&](Index passage, PassageScore score) {
        EXPECT_EQ(world.rank(), 0);
        answers.scores[static_cast<std::size_t>(passage)] = std::move(score);
        ++count;
      });
      EXPECT_EQ(count, world.rank() == 0 ? static_cast<Index>(questions.passages.size()) : 0);
    }
  });
  return answers;
}

double largest_difference(const Answers& got, const Answers& want) {
  double most = 0;
  for (std::size_t i = 0; i < want.scores.size(); ++i) {
    const auto &a = got.scores[i].log_probabilities, &b = want.scores[i].log_probabilities;
    if (a.size() != b.size()) return INFINITY;
    for (std::size_t j = 0; j < b.size(); ++j)
      most = std::max(most, std::abs(a[j] - b[j]) / std::max(1.0, std::abs(b[j])));
  }
  return most;
}

class InferenceGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(InferenceGrid, MatchesOneRank) {
  const Questions questions;
  for (const model::ModelConfig& model : {small_model(), small_model(model::llama_defaults())}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-6}}) {
      const InferenceConfig config{.dtype = dtype, .batch = 3, .results = kLossesAndIds};
      const Answers want = ask({}, model, questions, config), got = ask(GetParam(), model, questions, config);
      EXPECT_LT(largest_difference(got, want), tolerance) << model.family << ", " << name_of(dtype);
      for (std::size_t i = 0; i < want.scores.size(); ++i)
        EXPECT_EQ(got.scores[i].best_ids, want.scores[i].best_ids) << model.family << ", passage " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, InferenceGrid, ::testing::ValuesIn(kGrids),
                         [](const auto& one) { return one.param.name(); });

// The batch, the padding of shapes and the rows that the head takes change nothing.
TEST(InferenceModel, EveryPassageScoresAsAlone) {
  const Questions questions;
  for (const model::ModelConfig& model : {small_model(), small_model(model::llama_defaults())}) {
    const Answers got = ask({}, model, questions, {.dtype = DType::f64, .batch = 4});
    comm::run_ranks(1, [&](comm::World& world) {
      WholeModel whole(model, comm::make_mesh(world, grid::resolve({})), DType::f64);
      whole.fill_params(read_values);
      for (std::size_t i = 0; i < questions.passages.size(); ++i) {
        const Passage& passage = questions.passages[i];
        for (Index t = passage.first_target; t < static_cast<Index>(passage.ids.size()); ++t) {
          const std::span<const double> z = whole.last_logits(passage.ids.first(static_cast<std::size_t>(t)));
          double sum = 0;
          for (const double one : z) sum += std::exp(one);
          const double want = z[static_cast<std::size_t>(passage.ids[static_cast<std::size_t>(t)])] - std::log(sum);
          EXPECT_NEAR(got.scores[i].log_probabilities[static_cast<std::size_t>(t - passage.first_target)], want, 1e-12)
              << "passage " << i << ", target " << t;
        }
        EXPECT_TRUE(got.scores[i].best_ids.empty());
      }
    });
  }
}

TEST(InferenceModel, BestIdsAreThoseOfTheLogits) {
  const Questions questions;
  const Answers got =
      ask({.tp = 2}, small_model(), questions, {.dtype = DType::f64, .batch = 2, .results = kLossesAndIds});
  comm::run_ranks(1, [&](comm::World& world) {
    WholeModel whole(small_model(), comm::make_mesh(world, grid::resolve({})), DType::f64);
    whole.fill_params(read_values);
    for (std::size_t i = 0; i < questions.passages.size(); ++i) {
      const Passage& passage = questions.passages[i];
      const std::span<const double> z = whole.last_logits(passage.ids.first(passage.ids.size() - 1));
      EXPECT_EQ(got.scores[i].best_ids.back(), std::ranges::max_element(z) - z.begin()) << i;
    }
  });
}

// A position table of its own, or none, and gradients nowhere.
TEST(InferenceModel, TakesWhatItPlansAndParametersOnce) {
  const Questions questions;
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2, .dp = 2}, Grid{.pp = 2, .chunks = 2}}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Answers got = ask(grid, small_model(), questions, {.dtype = dtype, .batch = 2});
      for (std::size_t rank = 0; rank < got.planned.size(); ++rank) {
        EXPECT_EQ(got.taken[rank], got.planned[rank]) << grid.name() << ", rank " << rank;
        EXPECT_EQ(got.planned[rank].count("gradients") + got.planned[rank].count("parameter copies") +
                      got.planned[rank].count("optimizer"),
                  0u);
      }
      if (grid.ranks() > 1) continue;
      // With the padding of the vocabulary and of each parameter to 128 elements.
      const Index held = got.planned[0].at("parameters") / size_of(dtype),
                  real = model::count_parameters(small_model());
      EXPECT_GE(held, real);
      EXPECT_LE(held, real + 3 * 24 + 127 * (4 + 12 * 4)) << grid.name();
    }
  }
}

// Capacity is a rule of training: where a text is scored, no token loses an expert.
TEST(InferenceModel, CapacityChangesNoScore) {
  const Questions questions;
  model::ModelConfig model = small_model(model::llama_defaults());
  model.moe.num_experts = 4, model.moe.top_k = 2, model.moe.ffn_hidden_size = 8;
  const Answers want = ask({}, model, questions, {.dtype = DType::f64, .batch = 3});
  for (const nn::ExpertCapacity capacity : {nn::ExpertCapacity::drop, nn::ExpertCapacity::pad}) {
    model.moe.capacity = capacity;
    model.moe.capacity_factor = 0.5;
    model.moe.capacity_run = 2;
    const Answers got = ask({}, model, questions, {.dtype = DType::f64, .batch = 3});
    EXPECT_EQ(largest_difference(got, want), 0) << static_cast<int>(capacity);
  }
}

TEST(InferenceModel, ALossThatIsNoNumberIsRefused) {
  const Questions questions;
  comm::run_ranks(1, [&](comm::World& world) {
    InferenceModel model({.model = small_model(), .dtype = DType::f32}, world,
                         comm::make_mesh(world, grid::resolve({})), questions.counts);
    model.allocate();
    model.fill_params(DType::f32, [](const TensorSlice&, const Tensor& values) {
      std::ranges::fill(values.span<float>(), std::nanf(""));
    });
    EXPECT_THROW(model.score(questions.passages, [](Index, const PassageScore&) {}), NonFiniteError);
  });
}

// What an executor is changed to must fit the memory of what it was made for.
TEST(InferenceModel, LargerMessagesAreRefused) {
  const auto schedule = [](int microbatches) {
    return pipeline::lower(
        {.num_stages = 2, .num_microbatches = microbatches, .mode = pipeline::ScheduleMode::forward_only}, 0);
  };
  comm::run_ranks(2, [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = 2, .pp = 2}));
    if (world.rank() != 0) return;
    pipeline::Executor executor(schedule(4), mesh.pp, {{4, 64}, DType::f32});
    MemoryLedger ledger(Device::cpu);
    executor.allocate(ledger);
    EXPECT_NO_THROW(executor.change(schedule(1), {2, 64}));
    EXPECT_NO_THROW(executor.change(schedule(9), {4, 64})) << "buffers do not grow with the microbatches";
    try {
      executor.change(schedule(4), {8, 64});
      FAIL();
    } catch (const InternalError& error) {
      EXPECT_EQ(std::string(error.what()),
                "[Executor::change] buffers of 4096 bytes: must fit the 2048 bytes that were allocated");
    }
  });
}

TEST(Passages, ShapesAreFewAndHoldThePassage) {
  std::set<PassShape> shapes;
  for (Index inputs = 1; inputs <= 1024; ++inputs) {
    for (const Index targets : {Index{1}, inputs}) {
      const PassShape shape = pass_shape(inputs, targets, 1024);
      EXPECT_GE(shape.tokens, inputs);
      EXPECT_GE(shape.rows, std::min(targets, shape.tokens));
      EXPECT_LE(shape.tokens, std::max<Index>(32, inputs * 5 / 4 + 32)) << inputs;
      EXPECT_LE(shape.rows, shape.tokens);
      shapes.insert(shape);
    }
  }
  EXPECT_LT(shapes.size(), 50u);
  EXPECT_EQ(pass_shape(70, 70, 70), (PassShape{70, 70}));
  EXPECT_THROW(pass_shape(71, 1, 70), InternalError);
}

TEST(Passages, FewArePadding) {
  EXPECT_EQ(balanced_batch(7, 2000, 1), 7);
  EXPECT_EQ(balanced_batch(7, 2000, 2), 4);
  EXPECT_EQ(balanced_batch(1, 4, 8), 1);
  EXPECT_EQ(balanced_batch(5, 4, 1), 3) << "3 and 2, not 4 and 1";
  EXPECT_EQ(balanced_batch(400, 4, 1), 4);
  EXPECT_EQ(balanced_batch(0, 4, 1), 1);
}

// A batch above the number of passages takes no more memory than one of that number.
TEST(InferenceModel, TheBatchIsThatOfThePassages) {
  const Questions questions;
  const auto count = static_cast<Index>(questions.passages.size());
  for (const Grid& grid : {Grid{}, Grid{.pp = 2}}) {
    const Answers many = ask(grid, small_model(), questions, {.dtype = DType::f64, .batch = 2000}),
                  all = ask(grid, small_model(), questions, {.dtype = DType::f64, .batch = count}),
                  one = ask(grid, small_model(), questions, {.dtype = DType::f64, .batch = 1});
    EXPECT_EQ(many.planned, all.planned);
    EXPECT_LT(one.planned[0].at("inputs"), all.planned[0].at("inputs"));
    EXPECT_LT(largest_difference(many, one), 1e-12);
  }
}

TEST(Passages, RoundsHaveEachPassageOnce) {
  const Questions questions;
  const RoundSize size{.batch = 2, .dp = 2, .microbatches = 2};
  std::set<Index> seen;
  PassShape before{kSeqLen + 1, 0};
  for (const Round& round :
       make_rounds(PassageSamples(questions.passages, kSeqLen), [&](const PassShape&) { return size; })) {
    EXPECT_LE(round.shape, before) << "the longest first";
    before = round.shape;
    EXPECT_LE(std::ssize(round.samples), size.samples());
    EXPECT_EQ(round.microbatches, ceil_div(Index{std::ssize(round.samples)}, Index{4}));
    for (const Index passage : round.samples) EXPECT_TRUE(seen.insert(passage).second);
  }
  EXPECT_EQ(seen.size(), questions.passages.size());
}

}  // namespace
}  // namespace megalith::eval
