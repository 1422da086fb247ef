#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/tokenizer/tokenizer.h"

#include "tests/convert/hf_bert_numbers.h"
#include "tests/test_data.h"

// An embedding model that is a BertModel, all-MiniLM-L6-v2, against float64 arithmetic (tests/data/minilm). By hand, as
// its weights are 91 MB:
//   MEGALITH_TEST_MINILM=FOLDER build/PRESET/bin/tests_L6 --gtest_filter='MiniLm.*'
namespace megalith::convert {
namespace {

using nlohmann::json;
using nn::Result;

std::vector<json> sentences() {
  std::ifstream file(MEGALITH_TEST_DATA "/minilm/expected.jsonl");
  std::vector<json> all;
  for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
  return all;
}

double norm_of(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

/// The reference has the weights in half precision.
void round_to_half(const Tensor& values) {
  for (float& one : values.span<float>()) one = converted<float>(float16(one));
}

/// The last hidden states of all tokens [tokens H], by sentence.
std::vector<std::vector<double>> hidden_states(io::Fs& fs, const io::Path& folder, Index layers) {
  std::vector<BertText> texts;
  for (const json& one : sentences()) {
    const std::vector<std::int32_t> ids = one.at("ids");
    texts.push_back({.ids = ids, .types = std::vector<std::int32_t>(ids.size()), .targets = {}, .label = -1});
  }
  model::ModelConfig config = read_hf_config(fs, folder).config;
  config.num_layers = layers;
  const BertTexts samples(std::move(texts), config.seq_len);
  std::vector<std::vector<double>> states(static_cast<std::size_t>(samples.count()));
  const HfRun run{folder, DType::f32, {}, {{Result::hidden, config.hidden_size}}, round_to_half};
  with_hf_model(fs, run, config, samples, [&](eval::InferenceModel& model, bool) {
    model.infer(samples, [&](Index sample, const eval::SampleNumbers& numbers) {
      states[static_cast<std::size_t>(sample)] = numbers.of(Result::hidden);
    });
  });
  return states;
}

/// The mean over the tokens, with norm 1.
std::vector<double> embedding_of(const std::vector<double>& states, std::size_t width) {
  std::vector<double> mean(width);
  for (std::size_t i = 0; i < states.size(); ++i) mean[i % width] += states[i];
  const double norm = norm_of(mean);
  for (double& one : mean) one /= norm;
  return mean;
}

TEST(MiniLm, HasTheIdsHiddenStatesAndEmbeddingsOfTheReference) {
  const char* const named = std::getenv("MEGALITH_TEST_MINILM");
  if (named == nullptr) GTEST_SKIP() << "MEGALITH_TEST_MINILM names no folder of its weights (tests/data/minilm)";
  const auto fs = io::posix_fs();
  const io::Path folder = named;
  const auto tokenizer = tokenizer::make_tokenizer("bert-uncased", folder, *fs);
  const std::vector<json> wanted = sentences();
  ASSERT_EQ(wanted.size(), 21U);
  for (const json& one : wanted) {
    std::vector<std::int32_t> ids = {*tokenizer->special(tokenizer::Special::cls)};
    tokenizer->encode(one.at("text").get<std::string>(), ids);
    ids.push_back(*tokenizer->special(tokenizer::Special::sep));
    EXPECT_EQ(json(ids), one.at("ids"));
  }
  const Index layers = read_hf_config(*fs, folder).config.num_layers;
  std::vector<std::vector<double>> states;
  double worst = 0, least = 1;
  for (Index n = 1; n <= layers; ++n) {  // a model of the first n layers
    states = hidden_states(*fs, folder, n);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double want = wanted[i].at("layer_l2").at(static_cast<std::size_t>(n));
      worst = std::max(worst, std::abs(norm_of(states[i]) / want - 1));
      EXPECT_NEAR(norm_of(states[i]) / want, 1, 1e-4) << "after " << n << " layers, sentence " << i;
    }
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<double> want = wanted[i].at("embedding"), got = embedding_of(states[i], want.size());
    const double cosine = std::inner_product(got.begin(), got.end(), want.begin(), 0.0) / norm_of(want);
    least = std::min(least, cosine);
    EXPECT_GT(cosine, 0.99999) << "sentence " << i;
    const std::vector<double> head = wanted[i].at("last_hidden_first_token_head8");
    for (std::size_t n = 0; n < head.size(); ++n) EXPECT_NEAR(states[i][n], head[n], 2e-3) << "sentence " << i;
  }
  RecordProperty("largest_relative_difference_of_a_norm", str(worst));
  RecordProperty("smallest_cosine", str(least));
}

}  // namespace
}  // namespace megalith::convert
