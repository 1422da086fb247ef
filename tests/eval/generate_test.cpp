#include "megalith/eval/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/ops/init.h"

#include "tests/eval/whole_model.h"

namespace megalith::eval {
namespace {

/// How often each id is drawn at evenly spread uniforms.
std::map<std::int32_t, int> counts(const std::vector<double>& logits, const GenerateOptions& options) {
  std::map<std::int32_t, int> drawn;
  for (int i = 0; i < 1000; ++i) ++drawn[draw(logits, options, (i + 0.5) / 1000)];
  return drawn;
}

const std::vector<double> kLogits = {std::log(0.1), std::log(0.5), std::log(0.15), std::log(0.25)};

TEST(Draw, FollowsTheProbabilities) {
  EXPECT_EQ(counts(kLogits, {}), (std::map<std::int32_t, int>{{0, 100}, {1, 500}, {2, 150}, {3, 250}}));
}

TEST(Draw, ZeroTemperatureIsGreedyWithTiesToTheLowerId) {
  EXPECT_EQ(draw({{1, 3, 3, 2}}, {.temperature = 0}, 0.99), 1);
}

TEST(Draw, TopKKeepsTheKLikeliest) {
  EXPECT_EQ(counts(kLogits, {.top_k = 1}), (std::map<std::int32_t, int>{{1, 1000}}));
  const auto two = counts(kLogits, {.top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1), 667, 1);
  EXPECT_EQ(counts(kLogits, {.top_k = 99}), counts(kLogits, {}));
}

TEST(Draw, TopPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(counts(kLogits, {.top_p = 0.4}).size(), 1u);
  EXPECT_EQ(counts(kLogits, {.top_p = 0.6}).size(), 2u);
  EXPECT_EQ(counts(kLogits, {.top_p = 0.8}).size(), 3u);
  EXPECT_EQ(counts(kLogits, {.top_p = 0.95}).size(), 4u);
  EXPECT_EQ(counts(kLogits, {.top_k = 2, .top_p = 0.6}).size(), 1u) << "of the two, 0.5 is two thirds";
}

TEST(Draw, TemperatureComesBeforeTopP) {
  EXPECT_EQ(counts(kLogits, {.temperature = 1e-3, .top_p = 0.99}).size(), 1u);
  EXPECT_EQ(counts(kLogits, {.temperature = 1e3, .top_p = 0.8}).size(), 4u);
}

/// A small model with random weights and the parts of `config`, given to `use`.
template <class Use>
void with_model(Use&& use, Index seq_len = 6, model::ModelConfig config = {}) {
  comm::run_ranks(1, [&](comm::World& world) {
    config.num_layers = 2;
    config.hidden_size = 8;
    config.num_heads = 2;
    config.ffn_hidden_size = 12;
    config.seq_len = seq_len;
    config.vocab_size = 9;
    config.padded_vocab_size = 16;
    WholeModel model(config, comm::make_mesh(world, grid::resolve({})), DType::f64);
    Exec ex;
    for (Param& param : model.params().dense().params()) {
      param.spec.init_std *= 20;  // else all logits are alike
      ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.masters.whole, 7);
    }
    use(model);
  });
}

TEST(WholeModel, LogProbabilitiesAreThoseOfTheLogits) {
  const auto expect_those = [](WholeModel& model) {
    const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 8};
    const std::vector<double> found = model.log_probabilities(ids);
    ASSERT_EQ(found.size(), 5u);
    for (std::size_t i = 1; i < ids.size(); ++i) {
      const std::span<const double> z = model.last_logits(std::span(ids).first(i));
      double sum = 0;
      for (const double one : z) sum += std::exp(one);
      EXPECT_NEAR(found[i - 1], z[static_cast<std::size_t>(ids[i])] - std::log(sum), 1e-12) << i;
    }
    EXPECT_EQ(model.log_probabilities(std::span(ids).first(1)).size(), 0u);
    EXPECT_NEAR(model.log_probabilities(std::span(ids).first(2))[0], found[0], 1e-14);
    EXPECT_THROW(model.log_probabilities(std::vector<std::int32_t>(7)), InternalError);
  };
  with_model(expect_those);
  with_model(expect_those, 6, model::llama_defaults());
}

TEST(WholeModel, HoldsTheRotationsOfAllPositions) {
  const auto expect_bytes = [](WholeModel& model) {
    EXPECT_EQ(model.taken_bytes().at("rotations"), 6 * 4 * size_of(DType::f64));
  };
  with_model(expect_bytes, 6, model::llama_defaults());
}

// A pass over a window alone, rounded up, gives what a pass over the whole of seq_len gives.
TEST(WholeModel, TakesNoMemoryForGradients) {
  with_model([](WholeModel& model) {
    EXPECT_EQ(model.taken_bytes().count("gradients"), 0u);
    EXPECT_EQ(model.taken_bytes().at("parameters"), model.params().bytes().at("parameters"));
  });
}

TEST(WholeModel, WhatTheHostCannotHoldIsRefused) {
  comm::run_ranks(1, [&](comm::World& world) {
    const Index hidden = Index{1} << 18;
    const model::ModelConfig config{.num_layers = 2,
                                    .hidden_size = hidden,
                                    .num_heads = 64,
                                    .ffn_hidden_size = 4 * hidden,
                                    .seq_len = 8,
                                    .vocab_size = 16,
                                    .padded_vocab_size = 16};
    try {
      WholeModel model(config, comm::make_mesh(world, grid::resolve({})), DType::f32);
      FAIL() << "6 TiB";
    } catch (const IoError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.rfind("[memory] the model: needs 6.00 TiB (", 0), 0u) << text;
      EXPECT_NE(text.find(" are free: use a machine or a control group with more, or a smaller model"),
                std::string::npos)
          << text;
    }
  });
}

TEST(WholeModel, AWindowCostsItsOwnTokensOnly) {
  constexpr Index kLength = 3 * WholeModel::kWindowStep + 5;
  with_model(
      [](WholeModel& model) {
        std::vector<std::int32_t> ids;
        for (Index i = 0; i < kLength; ++i) ids.push_back(static_cast<std::int32_t>(i * i % 9));
        const auto scratch = [&] {
          const auto found = model.taken_bytes().find(kScratchOwner);
          return found == model.taken_bytes().end() ? 0 : found->second;
        };
        EXPECT_TRUE(model.log_probabilities(std::span(ids).first(1)).empty());
        EXPECT_EQ(scratch(), 0) << "nothing to compute";
        model.log_probabilities(std::span(ids).first(2));
        const Index least = scratch();
        model.log_probabilities(std::span(ids).first(WholeModel::kWindowStep));
        EXPECT_EQ(scratch(), least);
        const std::vector<double> whole = model.log_probabilities(ids);
        EXPECT_GT(scratch(), 2 * least);
        ASSERT_EQ(whole.size(), static_cast<std::size_t>(kLength - 1));
        // Longer and shorter ones in turn, so that what one leaves behind would be seen in the next.
        for (const Index length : {2, 101, 32, 33, 64, 31, 96, 97, 65, 3}) {
          const std::vector<double> found =
              model.log_probabilities(std::span(ids).first(static_cast<std::size_t>(length)));
          ASSERT_EQ(found.size(), static_cast<std::size_t>(length - 1));
          for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], whole[i], 1e-13) << length << ", " << i;
          const std::span<const double> z =
              model.last_logits(std::span(ids).first(static_cast<std::size_t>(length - 1)));
          double sum = 0;
          for (const double one : z) sum += std::exp(one);
          const auto next = static_cast<std::size_t>(ids[static_cast<std::size_t>(length - 1)]);
          EXPECT_NEAR(z[next] - std::log(sum), found.back(), 1e-12) << length;
        }
      },
      kLength);
}

/// Draws at the positions of texts are independent: their counts follow softmax, after the cuts.
TEST(Draw, OfTextsFollowsSoftmaxByChiSquare) {
  std::vector<double> logits;
  for (int i = 0; i < 50; ++i) logits.push_back(std::sin(3.0 * i) * 2);
  for (const GenerateOptions& options :
       {GenerateOptions{}, {.temperature = 0.7}, {.top_k = 12}, {.top_p = 0.8}, {.top_k = 30, .top_p = 0.9}}) {
    // The kept ids, from a definition of their own: in order of their probabilities.
    std::vector<std::pair<double, std::int32_t>> kept;
    double sum = 0;
    for (std::int32_t id = 0; id < 50; ++id) {
      kept.emplace_back(std::exp(logits[static_cast<std::size_t>(id)] / options.temperature), id);
    }
    std::ranges::sort(kept, std::greater<>());
    if (options.top_k > 0) kept.resize(static_cast<std::size_t>(options.top_k));
    for (const auto& [weight, id] : kept) sum += weight;
    double reached = 0;
    std::size_t count = 0;
    while (count < kept.size() && reached < options.top_p * sum) reached += kept[count++].first;
    kept.resize(count);
    constexpr int kTexts = 40, kPositions = 1000, kDraws = kTexts * kPositions;
    std::map<std::int32_t, int> drawn;
    for (int text = 0; text < kTexts; ++text) {
      const TextRequest request{.prompt = {text / 4, 7}, .sample = text % 4};
      for (int position = 2; position < 2 + kPositions; ++position)
        ++drawn[draw(logits, options, uniform_of(request, 9, position))];
    }
    double chi_square = 0;
    int found = 0;
    for (const auto& [weight, id] : kept) {
      const double expected = weight / reached * kDraws;
      chi_square += (drawn[id] - expected) * (drawn[id] - expected) / expected;
      found += drawn[id];
    }
    EXPECT_EQ(found, kDraws) << "none of the ids that were cut off";
    // The 0.9999 quantile of chi-square is near n + 3.72 sqrt(2 n) + 9 (Laurent and Massart 2000, lemma 1, is above
    // it).
    const auto freedom = static_cast<double>(kept.size() - 1);
    EXPECT_LT(chi_square, freedom + 3.72 * std::sqrt(2 * freedom) + 9) << kept.size() << " ids";
    EXPECT_GT(chi_square, freedom - 3.72 * std::sqrt(2 * freedom)) << "too even to be random";
  }
}

TEST(Draw, UniformsDifferBySeedPromptSampleAndPosition) {
  const TextRequest request{.prompt = {1, 2, 3}};
  const double of = uniform_of(request, 5, 3);
  EXPECT_EQ(of, uniform_of(request, 5, 3));
  EXPECT_NE(of, uniform_of(request, 6, 3));
  EXPECT_NE(of, uniform_of(request, 5, 4));
  EXPECT_NE(of, uniform_of({.prompt = {1, 2, 3}, .sample = 1}, 5, 3));
  EXPECT_NE(of, uniform_of({.prompt = {2, 1, 3}}, 5, 3));
  EXPECT_NE(of, uniform_of({.prompt = {1, 2}}, 5, 3));
}

}  // namespace
}  // namespace megalith::eval
