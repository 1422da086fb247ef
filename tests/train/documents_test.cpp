#include <array>

#include <gtest/gtest.h>

#include "megalith/data/sample_documents.h"

#include "tests/train/agreeing_runs.h"

// Samples of several documents: no token attends across them and positions begin again in each, so a run has the
// numbers of one whose samples are single documents with padding behind them. On every stage of every grid.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

/// Samples of HashedBatches, each of two documents, the first of one to all tokens.
class PackedDocuments final : public support::HashedBatches {
 public:
  using HashedBatches::HashedBatches;
  static std::size_t first_size(Index sample) { return 1 + static_cast<std::size_t>(sample) * 5 % kSize; }
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    if (!batch.tokens.empty()) HashedBatches::fill(first_sample, count, batch);
    for (Index i = 0; i < count && !batch.document_begin.empty(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kSize, first = first_size(first_sample + i);
      const data::SampleDocuments to{batch.document_begin.subspan(at, kSize), batch.positions.subspan(at, kSize)};
      to.put(0, first);
      to.put(first, kSize);
    }
  }
  static constexpr std::size_t kSize = 9;  // tokens of a sample
};

/// Each document as a sample of its own: n is the first or second of sample n / 2 of PackedDocuments.
class DocumentsAlone final : public model::BatchSource {
 public:
  explicit DocumentsAlone(Index vocab) : packed_(vocab) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    constexpr std::size_t kSize = PackedDocuments::kSize;
    std::array<std::int32_t, kSize> tokens{}, targets{};
    for (Index i = 0; i < count && !batch.tokens.empty(); ++i) {
      const Index sample = (first_sample + i) / 2;
      packed_.fill(sample, 1, {.tokens = tokens, .targets = targets});
      const std::size_t cut = PackedDocuments::first_size(sample), at = static_cast<std::size_t>(i) * kSize;
      const bool is_first = (first_sample + i) % 2 == 0;
      const std::size_t begin = is_first ? 0 : cut, size = is_first ? cut : kSize - cut;
      std::ranges::fill(batch.tokens.subspan(at, kSize), 0);
      std::ranges::fill(batch.targets.subspan(at, kSize), model::kNoTarget);
      std::ranges::copy(std::span(tokens).subspan(begin, size), batch.tokens.subspan(at).begin());
      std::ranges::copy(std::span(targets).subspan(begin, size), batch.targets.subspan(at).begin());
    }
  }

 private:
  PackedDocuments packed_;
};

enum class Family { gpt, llama };
enum class Samples { packed, alone };

config::RunPlan documents_plan(Family family, Samples samples, const Grid& grid = {}) {
  config::RunConfig c = support::small_config(grid, "fp64", 4);
  if (family == Family::llama) {
    c.model.family = "llama";
    c.model.num_kv_heads = 2;
    c.model.head_dim = 6;
  }
  c.model.dropout = 0;  // whose numbers follow from the place in a sample
  c.train.micro_batch = 2;
  if (samples == Samples::alone) {
    c.train.global_batch = 2 * *c.train.global_batch;
    c.train.micro_batch = 4;
  }
  config::RunPlan plan = config::resolve(c);
  if (samples == Samples::packed) plan.model.documents = ops::DocumentMask::given;
  return plan;
}

std::unique_ptr<RunRecord> trained_on_documents(const config::RunPlan& plan, Samples samples = Samples::packed) {
  auto record = std::make_unique<RunRecord>();
  const PackedDocuments packed(plan.model.vocab_size);
  const DocumentsAlone alone(plan.model.vocab_size);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    if (samples == Samples::packed)
      support::train_rank(world, plan, packed, *record);
    else
      support::train_rank(world, plan, alone, *record);
  });
  return record;
}

/// Of a run on one rank whose samples are single documents.
const RunRecord& alone(Family family) {
  static const auto make = [](Family of) {
    return trained_on_documents(documents_plan(of, Samples::alone), Samples::alone);
  };
  static const std::unique_ptr<RunRecord> gpt = make(Family::gpt), llama = make(Family::llama);
  return family == Family::gpt ? *gpt : *llama;
}

class DocumentsGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(DocumentsGrid, HasTheNumbersOfEachDocumentAlone) {
  for (const Family family : {Family::gpt, Family::llama}) {
    SCOPED_TRACE(family == Family::gpt ? "gpt" : "llama");
    const auto packed = trained_on_documents(documents_plan(family, Samples::packed, GetParam()));
    support::expect_fp64_agrees(*packed, alone(family));
  }
}

constexpr auto kShared = nn::SequenceParallel::on;
INSTANTIATE_TEST_SUITE_P(Small, DocumentsGrid,
                         ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2},
                                           Grid{.tp = 2, .pp = 2, .dp = 2},
                                           Grid{.dp = 2, .sharding = Sharding::optimizer},
                                           Grid{.tp = 2, .pp = 2, .sequence_parallel = kShared}),
                         [](const auto& grid) { return grid.param.name(); });

TEST(Documents, ChangeTheNumbers) {
  for (const Family family : {Family::gpt, Family::llama}) {
    config::RunPlan plan = documents_plan(family, Samples::packed);
    plan.model.documents = ops::DocumentMask::none;
    EXPECT_GT(support::relative_error(trained_on_documents(plan)->losses, alone(family).losses), 1e-6);
  }
}

TEST(Documents, HaveTheSameBitsInGraphsAndRecomputed) {
  for (const Family family : {Family::gpt, Family::llama}) {
    const config::RunPlan plan = documents_plan(family, Samples::packed, {.pp = 4});
    const auto eager = trained_on_documents(plan);
    for (const capture::GraphMode mode : {capture::GraphMode::layers, capture::GraphMode::iteration}) {
      config::RunPlan captured = plan;
      captured.graphs.mode = mode;
      captured.graphs.warmup_steps = 1;
      EXPECT_EQ(trained_on_documents(captured)->norms, eager->norms) << name(mode);
    }
    config::RunPlan recomputed = plan;
    recomputed.recompute.mode = nn::RecomputeMode::full;
    EXPECT_EQ(trained_on_documents(recomputed)->norms, eager->norms);
    recomputed.recompute.mode = nn::RecomputeMode::selective;
    recomputed.recompute.add(nn::RecomputeModule::attention);
    EXPECT_EQ(trained_on_documents(recomputed)->norms, eager->norms);
  }
}

TEST(Documents, GoWithTheirSubMicrobatch) {
  for (const Family family : {Family::gpt, Family::llama}) {
    config::RunPlan plan = documents_plan(family, Samples::packed, {.tp = 2});
    plan.tp_overlap = config::TpOverlap::halves;
    ASSERT_EQ(plan.sub_batches(), 2);
    support::expect_fp64_agrees(*trained_on_documents(plan), alone(family));
  }
}

}  // namespace
}  // namespace megalith
