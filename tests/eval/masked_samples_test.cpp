#include "megalith/eval/masked_samples.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/eval/inference_model.h"

#include "tests/eval/small_decoder.h"

// Inference of masked language models: no sample depends on padding, on other samples or on the grid.
namespace megalith::eval {
namespace {

constexpr Index kMaskedSeqLen = 70, kMaskedVocab = 61;

model::ModelConfig small_bert(nn::NormPlacement placement = nn::NormPlacement::pre,
                              data::SentenceOrder order = data::SentenceOrder::sop) {
  model::ModelConfig config = small(model::bert_defaults(), kMaskedSeqLen);
  config.norm_placement = placement;
  config.bert.seq_len = kMaskedSeqLen;
  config.bert.order = order;
  return config;
}

/// Two segments of some ids, of which some are asked for: none of the first sample.
MaskedSample some_sample(Index length, Index seed) {
  MaskedSample sample;
  for (Index i = 0; i < length; ++i) {
    const std::uint64_t word = mix64(static_cast<std::uint64_t>(seed * 1000 + i));
    sample.ids.push_back(static_cast<std::int32_t>(word % kMaskedVocab));
    sample.types.push_back(2 * i < length ? 0 : 1);
    sample.targets.push_back(seed > 0 && word % 5 == 0 ? static_cast<std::int32_t>(word / 64 % kMaskedVocab) : -1);
  }
  return sample;
}

std::vector<MaskedSample> some_samples() {
  std::vector<MaskedSample> samples;
  for (const Index length : {9, 3, 1, 33, 40, 70, 70, 12, 64, 32, 50})
    samples.push_back(some_sample(length, static_cast<Index>(samples.size())));
  return samples;
}

/// Shapes without any padding.
class ExactShapes final : public Samples {
 public:
  explicit ExactShapes(const MaskedSamples& samples) : samples_(samples) {}
  Index count() const override { return samples_.count(); }
  PassShape shape(Index sample) const override { return {tokens(sample), std::max<Index>(rows(sample), 1)}; }
  Index tokens(Index sample) const override { return samples_.tokens(sample); }
  Index rows(Index sample) const override { return samples_.rows(sample); }
  void fill(Index sample, const SampleInputs& to) const override { samples_.fill(sample, to); }

 private:
  const MaskedSamples& samples_;
};

struct MaskedGrid {
  int tp = 1, pp = 1, dp = 1;
  int ranks() const { return tp * pp * dp; }
};

std::vector<AskedResult> all_results(const model::ModelConfig& model) {
  std::vector<AskedResult> asked = masked_results(model.bert);
  asked.push_back({nn::Result::best_ids});
  asked.push_back({nn::Result::hidden, model.hidden_size});
  if (model.bert.is_pair()) asked.push_back({nn::Result::pooled, model.hidden_size});
  return asked;
}

struct Asking {
  DType dtype = DType::f64;
  Index batch = 3;
  MaskedGrid grid = {};
};

std::vector<SampleNumbers> numbers_of(const model::ModelConfig& model, const Samples& samples, const Asking& asking) {
  std::vector<SampleNumbers> numbers(static_cast<std::size_t>(samples.count()));
  const MaskedGrid& grid = asking.grid;
  comm::run_ranks(grid.ranks(), [&](comm::World& world) {
    const comm::Mesh mesh =
        comm::make_mesh(world, grid::resolve({.world_size = grid.ranks(), .tp = grid.tp, .pp = grid.pp}));
    InferenceModel inference(
        {.model = model, .dtype = asking.dtype, .batch = asking.batch, .results = all_results(model)}, world, mesh,
        count_shapes(samples));
    inference.allocate();
    EXPECT_EQ(inference.taken_bytes(), inference.planned_bytes());
    inference.fill_params(DType::f32, random_values);
    for (int times = 0; times < 2; ++times)  // what one leaves behind would be seen in the next
      inference.infer(samples, [&](Index sample, const SampleNumbers& found) {
        EXPECT_EQ(world.rank(), 0);
        numbers[static_cast<std::size_t>(sample)] = found;
      });
  });
  return numbers;
}

/// Of one result in all samples; infinite where counts differ.
double difference(const std::vector<SampleNumbers>& got, const std::vector<SampleNumbers>& want, nn::Result result) {
  double most = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::vector<double>&a = got[i].of(result), &b = want[i].of(result);
    if (a.size() != b.size()) return INFINITY;
    for (std::size_t j = 0; j < b.size(); ++j)
      most = std::max(most, std::abs(a[j] - b[j]) / std::max(1.0, std::abs(b[j])));
  }
  return most;
}

void expect_same(const std::vector<SampleNumbers>& got, const std::vector<SampleNumbers>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const nn::ResultRow& row : nn::kResults) EXPECT_LE(difference(got, want, row.result), tolerance) << row.name;
}

// In f32 the sums of a GEMM are grouped by its shape.
TEST(MaskedSamples, PaddingAndOtherSamplesChangeNoBit) {
  const std::vector<MaskedSample> list = some_samples();
  const MaskedSamples samples(list, kMaskedSeqLen);
  for (const nn::NormPlacement placement : {nn::NormPlacement::pre, nn::NormPlacement::post}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 0.0}, {DType::f32, 5e-6}}) {
      SCOPED_TRACE(str(name_of(dtype), ", placement ", static_cast<int>(placement)));
      const model::ModelConfig model = small_bert(placement);
      const std::vector<SampleNumbers> want = numbers_of(model, ExactShapes(samples), {.dtype = dtype, .batch = 1});
      for (const Index batch : {1, 3, 16}) expect_same(numbers_of(model, samples, {dtype, batch}), want, tolerance);
      expect_same(numbers_of(model, ExactShapes(samples), {dtype, 16}), want, tolerance);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const MaskedSamples alone({&list[i], 1}, kMaskedSeqLen);
        expect_same(numbers_of(model, alone, {dtype, 4}), {want[i]}, tolerance);
      }
      EXPECT_GT(std::abs(want[5].of(nn::Result::losses)[0] - want[6].of(nn::Result::losses)[0]), 1e-3);
    }
  }
}

// A head takes kRowsOfHead rows at a time.
TEST(MaskedSamples, RowsOfSeveralBlocksOfTheHead) {
  std::vector<MaskedSample> list;
  for (Index i = 0; i < 12; ++i) {
    list.push_back(some_sample(kMaskedSeqLen, i));
    list.back().targets = list.back().ids;
  }
  const MaskedSamples samples(list, kMaskedSeqLen);
  static_assert(12 * kMaskedSeqLen > model::Chunk::kRowsOfHead);
  const model::ModelConfig model = small_bert();
  const std::vector<SampleNumbers> want = numbers_of(model, samples, {.batch = 1});
  EXPECT_EQ(want[11].of(nn::Result::losses).size(), 70U);
  expect_same(numbers_of(model, samples, {.batch = 12}), want, 0);
}

TEST(MaskedSamples, GridsGiveTheNumbersOfOneRank) {
  const std::vector<MaskedSample> list = some_samples();
  const MaskedSamples samples(list, kMaskedSeqLen);
  for (const model::ModelConfig& model :
       {small_bert(), small_bert(nn::NormPlacement::post, data::SentenceOrder::none)}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-5}}) {
      const std::vector<SampleNumbers> want = numbers_of(model, samples, {.dtype = dtype});
      for (const MaskedGrid& grid : {MaskedGrid{.tp = 2}, {.pp = 3}, {.dp = 2}, {.tp = 2, .pp = 3, .dp = 2}}) {
        SCOPED_TRACE(str("tp ", grid.tp, " pp ", grid.pp, " dp ", grid.dp, ", ", name_of(dtype)));
        expect_same(numbers_of(model, samples, {.dtype = dtype, .grid = grid}), want, tolerance);
      }
    }
  }
}

TEST(MaskedSamples, TokensTypesAndPlacesMatter) {
  const model::ModelConfig model = small_bert();
  const MaskedSample sample = some_sample(20, 3);
  const auto first_loss = [&](const MaskedSample& one) {
    return numbers_of(model, MaskedSamples({&one, 1}, kMaskedSeqLen), {}).front().of(nn::Result::losses).front();
  };
  const double want = first_loss(sample);
  MaskedSample other = sample;
  other.ids.back() = (other.ids.back() + 1) % kMaskedVocab;
  EXPECT_GT(std::abs(first_loss(other) - want), 1e-9) << "attention to all tokens";
  other = sample;
  other.types.back() = 0;
  EXPECT_GT(std::abs(first_loss(other) - want), 1e-9);
  other = sample;
  const auto asked = static_cast<std::size_t>(
      std::ranges::find_if(other.targets, [](std::int32_t id) { return id >= 0; }) - other.targets.begin());
  std::swap(other.targets[asked], other.targets[asked + 1]);
  EXPECT_GT(std::abs(first_loss(other) - want), 1e-9);
}

/// A sample that is given its label.
class Labelled final : public Samples {
 public:
  Labelled(const MaskedSamples& samples, std::int32_t label) : samples_(samples), label_(label) {}
  Index count() const override { return samples_.count(); }
  PassShape shape(Index sample) const override { return samples_.shape(sample); }
  Index tokens(Index sample) const override { return samples_.tokens(sample); }
  Index rows(Index sample) const override { return samples_.rows(sample); }
  void fill(Index sample, const SampleInputs& to) const override {
    samples_.fill(sample, to);
    to.label = label_;
  }

 private:
  const MaskedSamples& samples_;
  std::int32_t label_;
};

TEST(MaskedSamples, LossesOfLabelsAreThoseOfTheLogits) {
  const std::vector<MaskedSample> list = some_samples();
  const MaskedSamples samples(list, kMaskedSeqLen);
  for (const std::int32_t label : {-1, 0, 1}) {
    for (const SampleNumbers& one : numbers_of(small_bert(), Labelled(samples, label), {})) {
      const std::array<double, 2> logs = order_log_probabilities(one);
      EXPECT_NEAR(std::exp(logs[0]) + std::exp(logs[1]), 1, 1e-14);
      EXPECT_NEAR(one.of(nn::Result::label_losses).front(), label < 0 ? 0 : -logs[static_cast<std::size_t>(label)],
                  1e-14);
    }
  }
}

// The hidden states are what the head's logits are made of: of a GPT their products with the table.
TEST(InferenceResults, HiddenStatesGiveTheLosses) {
  const model::ModelConfig model = small(model::ModelConfig{}, kMaskedSeqLen);
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < 40; ++i) ids.push_back(static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) % 61));
  const Passage passage{ids, 30};
  std::vector<float> table;
  SampleNumbers found;
  comm::run_ranks(1, [&](comm::World& world) {
    const PassageSamples samples({&passage, 1}, kMaskedSeqLen);
    InferenceModel inference(
        {.model = model,
         .dtype = DType::f64,
         .results = {{nn::Result::hidden, model.hidden_size}, {nn::Result::losses}, {nn::Result::best_ids}}},
        world, comm::make_mesh(world, grid::resolve({})), count_shapes(samples));
    inference.allocate();
    inference.fill_params(DType::f32, [&](const TensorSlice& slice, const Tensor& values) {
      random_values(slice, values);
      const auto all = values.span<float>();
      if (slice.name == model::kTokenTable) table.insert(table.end(), all.begin(), all.end());
    });
    inference.infer(samples, [&](Index, const SampleNumbers& numbers) { found = numbers; });
  });
  const auto hidden_size = static_cast<std::size_t>(model.hidden_size);
  ASSERT_EQ(table.size(), 61 * hidden_size);
  ASSERT_EQ(found.of(nn::Result::hidden).size(), 10 * hidden_size);
  for (std::size_t row = 0; row < 10; ++row) {
    std::vector<double> logits(61);
    double sum = 0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      for (std::size_t h = 0; h < hidden_size; ++h)
        logits[id] += found.of(nn::Result::hidden)[row * hidden_size + h] * table[id * hidden_size + h];
      sum += std::exp(logits[id]);
    }
    EXPECT_NEAR(found.of(nn::Result::losses)[row], std::log(sum) - logits[static_cast<std::size_t>(ids[30 + row])],
                1e-10);
    EXPECT_EQ(found.of(nn::Result::best_ids)[row], std::ranges::max_element(logits) - logits.begin());
  }
}

TEST(InferenceResults, WhatAHeadDoesNotMakeIsRefused) {
  comm::run_ranks(1, [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({}));
    const PassCounts one = {{{32, 8}, 1}};
    const auto build = [&](const model::ModelConfig& model, nn::Result result) {
      InferenceModel inference({.model = model, .results = {{result}}}, world, mesh, one);
    };
    EXPECT_THROW(build(small_bert(), nn::Result::row_logits), InternalError);
    EXPECT_THROW(build(small(model::ModelConfig{}, kMaskedSeqLen), nn::Result::pooled), InternalError);
    EXPECT_THROW(build(small_bert(nn::NormPlacement::pre, data::SentenceOrder::none), nn::Result::class_logits),
                 InternalError);
  });
}

TEST(MaskedFigures, AreMeansOverTokensAndOverSamples) {
  const std::vector<ExampleResult> results = {
      {.log_probability = -3, .targets = 1, .correct = true, .order_log_probability = -0.25},
      {.log_probability = -6, .targets = 5, .correct = false, .order_log_probability = -1}};
  const Figures with = masked_figures(results, SamplesHaveOrder::yes),
                without = masked_figures(results, SamplesHaveOrder::no);
  const std::map<std::string, double> all(with.begin(), with.end()), some(without.begin(), without.end());
  EXPECT_EQ(all, (std::map<std::string, double>{{"loss", 1.5 + 0.625},
                                                {"mlm_loss", 1.5},
                                                {"masked_tokens", 6},
                                                {"order_loss", 0.625},
                                                {"order_accuracy", 0.5},
                                                {"perplexity", std::exp(1.5)}}));
  EXPECT_EQ(some, (std::map<std::string, double>{
                      {"loss", 1.5}, {"mlm_loss", 1.5}, {"masked_tokens", 6}, {"perplexity", std::exp(1.5)}}));
}

}  // namespace
}  // namespace megalith::eval
