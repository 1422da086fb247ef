#include "tests/convert/hf_bert_numbers.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/convert/hf_folders.h"

// What BERT and Megatron-BERT compute of padded samples, against the transformers library
// (tests/reference/make_hf_bert.py): as imported, and as exported and imported again.
namespace megalith::convert {
namespace {

using nn::Result;

/// ln p of all ids, from logits.
std::vector<double> log_probabilities(const std::vector<double>& logits) {
  double sum = 0;
  for (const double one : logits) sum += std::exp(one);
  std::vector<double> all;
  for (const double one : logits) all.push_back(one - std::log(sum));
  return all;
}

/// The greatest differences from what the library computes, by name.
class Differences {
 public:
  void add(const std::string& name, double got, double want) {
    double& most = most_[name];
    most = std::isfinite(got) ? std::max(most, std::abs(got - want)) : INFINITY;
  }
  const std::map<std::string, double>& all() const { return most_; }

 private:
  std::map<std::string, double> most_;
};

/// Hidden rows, pooled rows, logits and losses of the order, and the mean loss of masked tokens.
void compare_results(eval::InferenceModel& model, const BertTexts& texts, const json& numbers, Differences& most) {
  double loss = 0, order_loss = 0;
  Index targets = 0;
  model.infer(texts, [&](Index sample, const eval::SampleNumbers& got) {
    const auto i = static_cast<std::size_t>(sample);
    const auto compare = [&](const char* name, const std::vector<double>& values, const json& wanted) {
      ASSERT_EQ(values.size(), wanted.size()) << name;
      for (std::size_t n = 0; n < values.size(); ++n) most.add(name, values[n], wanted[n]);
    };
    std::vector<double> hidden;
    for (const json& row : numbers.at("hidden")[i]) hidden.insert(hidden.end(), row.begin(), row.end());
    compare("hidden", got.of(Result::hidden), hidden);
    if (numbers.contains("pooled")) compare("pooled", got.of(Result::pooled), numbers.at("pooled")[i]);
    if (numbers.contains("order_logits"))
      compare("order logits", got.of(Result::class_logits), numbers.at("order_logits")[i]);
    for (const double one : got.of(Result::losses)) loss += one;
    targets += std::ranges::count_if(texts.at(sample).targets, [](std::int32_t id) { return id >= 0; });
    order_loss += got.of(Result::label_losses).at(0);
  });
  if (targets == 0) return;  // another rank than the first
  if (numbers.contains("mlm_loss")) most.add("mlm_loss", loss / static_cast<double>(targets), numbers.at("mlm_loss"));
  if (numbers.contains("order_loss"))
    most.add("order_loss", order_loss / static_cast<double>(texts.count()), numbers.at("order_loss"));
}

/// ln p of every id at the rows whose logits are stored.
void compare_logits(eval::InferenceModel& model, const json& expected, BertTexts texts, Differences& most) {
  std::vector<std::vector<std::vector<double>>> wanted;  // by sample and row: of all ids
  for (const json& rows : expected.at("numbers").at("logits"))
    for (wanted.emplace_back(); const json& row : rows) wanted.back().push_back(log_probabilities(row));
  for (std::int32_t id = 0; id < model.config().model.vocab_size; ++id) {
    texts.set_targets(id);
    model.infer(texts, [&](Index sample, const eval::SampleNumbers& got) {
      const json& rows = expected.at("samples")[static_cast<std::size_t>(sample)].at("rows");
      for (std::size_t n = 0; n < rows.size(); ++n)
        most.add("logits", -got.of(Result::losses).at(rows[n]),
                 wanted[static_cast<std::size_t>(sample)][n][static_cast<std::size_t>(id)]);
    });
  }
}

Differences differences(const HfCase& one, const io::Path& folder, DType dtype, const grid::ParallelSizes& grid) {
  Differences most;
  const json& numbers = one.expected.at("numbers");
  const model::ModelConfig config = read_hf_config(*kFs, folder).config;
  const BertTexts texts = bert_texts_of(one.expected, config.seq_len);
  const HfRun run{folder,
                  dtype,
                  grid,
                  {{Result::losses},
                   {Result::hidden, config.hidden_size},
                   {Result::label_losses},
                   {Result::class_logits, 2},
                   {Result::pooled, config.hidden_size}}};
  with_hf_model(*kFs, run, config, texts, [&](eval::InferenceModel& model, bool is_first) {
    Differences none;
    compare_results(model, texts, numbers, is_first ? most : none);
    if (numbers.contains("logits")) compare_logits(model, one.expected, texts, is_first ? most : none);
  });
  return most;
}

class HfBertNumbers : public ::testing::TestWithParam<const char*> {
 protected:
  static void expect_close(const HfCase& one, const io::Path& folder, const char* what) {
    const json& numbers = one.expected.at("numbers");
    const std::size_t wanted = numbers.size() - numbers.count("grad_norm");  // of a training: hf_bert_step_test.cpp
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-9}, {DType::f32, 1e-4}}) {
      const Differences most = differences(one, folder, dtype, {});
      EXPECT_EQ(most.all().size(), wanted) << what;
      for (const auto& [name, value] : most.all())
        EXPECT_LT(value, tolerance) << what << ", " << name_of(dtype) << ": " << name;
    }
  }
};

TEST_P(HfBertNumbers, AreThoseOfTransformersBeforeAndAfterAnExport) {
  const HfCase one(GetParam());
  expect_close(one, one.folder, "imported");
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  const RandomModel model = imported(one.folder);
  kFs->make_dir(dir / "hf");
  export_hf(*kFs, dir / "hf", values_of(padded(hf.config), model.params), {.end_of_document = 7});
  expect_close(one, dir / "hf", "exported");
}

TEST_P(HfBertNumbers, AreTheSameOnAGrid) {
  const HfCase one(GetParam());
  const Differences most = differences(one, one.folder, DType::f64, {.world_size = 4, .tp = 2, .pp = 2});
  for (const auto& [name, value] : most.all()) EXPECT_LT(value, 1e-9) << name;
}

INSTANTIATE_TEST_SUITE_P(All, HfBertNumbers,
                         ::testing::Values("bert", "bert_tanh", "bert_masked_lm", "bert_model", "megatron_bert",
                                           "megatron_bert_tanh"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace megalith::convert
