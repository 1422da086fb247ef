#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/convert/hf_bert_numbers.h"
#include "tests/convert/hf_folders.h"

// Fine-tuned BERTs to and from Hugging Face folders: logits of padded samples against the transformers library
// (tests/reference/make_hf_bert.py), as imported and as exported and imported again; keys, names, refusals.
namespace megalith::convert {
namespace {

using nn::Result;
using nn::TaskForm;

model::ModelConfig task_config(const io::Path& folder) { return read_hf_config(*kFs, folder).config; }

/// The greatest difference of all logits from what the library computes.
double difference_of_logits(const HfCase& one, const io::Path& folder, DType dtype, const grid::ParallelSizes& grid) {
  const model::ModelConfig config = task_config(folder);
  const bool has_spans = config.task->form == TaskForm::spans;
  const Result result = has_spans ? Result::row_logits : Result::class_logits;
  const Index width = has_spans ? 2 : config.task->form == TaskForm::choices ? 1 : config.task->classes;
  const BertTexts texts =
      bert_texts_of(one.expected, config.seq_len, has_spans ? BertRows::all_tokens : BertRows::none);
  const json& wanted = one.expected.at("numbers").at(has_spans ? "row_logits" : "class_logits");
  double most = 0;
  Index compared = 0;
  with_hf_model(*kFs, {folder, dtype, grid, {{result, width}}}, config, texts,
                [&](eval::InferenceModel& model, bool is_first) {
                  model.infer(texts, [&](Index sample, const eval::SampleNumbers& got) {
                    if (!is_first) return;
                    std::vector<double> want;
                    for (const json& row : wanted[static_cast<std::size_t>(sample)])
                      for (const json& value : row.is_array() ? row : json::array({row})) want.push_back(value);
                    const std::vector<double>& values = got.of(result);
                    ASSERT_EQ(values.size(), want.size());
                    for (std::size_t i = 0; i < want.size(); ++i) {
                      ASSERT_TRUE(std::isfinite(values[i]));
                      most = std::max(most, std::abs(values[i] - want[i]));
                    }
                    ++compared;
                  });
                });
  EXPECT_EQ(compared, texts.count());
  return most;
}

class HfTask : public ::testing::TestWithParam<const char*> {};

/// Imports a folder and exports it.
void export_again(const io::Path& from, const HfModel& hf, const io::Path& to, std::optional<std::int32_t> padding) {
  const RandomModel model = imported(from);
  kFs->make_dir(to);
  export_hf(*kFs, to, values_of(padded(hf.config), model.params),
            {.end_of_document = 7, .padding = padding, .task = hf.task, .labels = hf.labels});
}

TEST_P(HfTask, LogitsAreThoseOfTransformersBeforeAndAfterAnExport) {
  const HfCase one(GetParam());
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  export_again(one.folder, hf, dir / "hf", {});
  EXPECT_EQ(tensors_of(dir / "hf"), tensors_of(one.folder)) << "also zeros for a bias that ours has not";
  for (const io::Path& folder : {one.folder, dir / "hf"}) {
    EXPECT_LT(difference_of_logits(one, folder, DType::f64, {}), 1e-9) << folder;
    EXPECT_LT(difference_of_logits(one, folder, DType::f32, {}), 1e-4) << folder;
  }
  EXPECT_LT(difference_of_logits(one, dir / "hf", DType::f64, {.world_size = 4, .tp = 2, .pp = 2}), 1e-9);
}

TEST_P(HfTask, KeysGoBack) {
  const HfCase one(GetParam());
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  export_again(one.folder, hf, dir / "hf", 0);
  const json written = json::parse(read_all(dir / "hf" / "config.json")),
             theirs = json::parse(read_all(one.folder / "config.json"));
  for (const char* key : {"architectures", "model_type", "id2label", "finetuning_task"})
    EXPECT_EQ(written.value(key, json()), theirs.value(key, json())) << key;
  const HfModel again = read_hf_config(*kFs, dir / "hf");
  EXPECT_EQ(again.task, hf.task);
  EXPECT_EQ(again.labels, hf.labels);
  EXPECT_EQ(again.config.task->form, hf.config.task->form);
  EXPECT_EQ(HfReader(*kFs, dir / "hf", again, 1).warning(), "");
}

INSTANTIATE_TEST_SUITE_P(All, HfTask,
                         ::testing::Values("bert_classes", "megatron_bert_classes", "bert_choice",
                                           "megatron_bert_span"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HfTaskKeys, ClassesAreNumberedByIdToLabel) {
  const HfModel hf = read_hf_config(*kFs, HfCase("bert_classes").folder);
  EXPECT_EQ(hf.labels, (std::vector<std::string>{"entailment", "neutral", "contradiction"}));
  EXPECT_EQ(hf.config.task->classes, 3);
  EXPECT_EQ(read_hf_config(*kFs, HfCase("megatron_bert_span").folder).task, "squad2");
}

class SpoiltTask : public SpoiltFolder {};

TEST_F(SpoiltTask, ABiasThatChangesNoChoiceIsLeftOut) {
  copy("megatron_bert_span");
  const RandomModel usual = imported(folder());
  rewrite([](Tensors& values, std::map<std::string, Shape>&) { values.at("qa_outputs.bias") = {0.5F, -1}; });
  EXPECT_EQ(imported(folder()).all_values(), usual.all_values());
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    values.at("qa_outputs.bias") = {1}, shapes.at("qa_outputs.bias") = {1};
  });
  expect_error("tensor \"qa_outputs.bias\" shape = [1]: must be [2] by config.json");
}

// The library's class for spans is built without a pooler: it loads such a folder and leaves it out.
TEST_F(SpoiltTask, APoolerOfAModelForSpansIsLeftOutAndNamed) {
  copy("megatron_bert_span");
  const auto warning = [&] { return HfReader(*kFs, folder(), read_hf_config(*kFs, folder()), 1).warning(); };
  const RandomModel usual = imported(folder());
  EXPECT_EQ(warning(), "");
  const Index hidden = task_config(folder()).hidden_size;
  const auto add = [&](const std::string& name, const Shape& shape) {
    rewrite([&](Tensors& values, std::map<std::string, Shape>& shapes) {
      values[name] = std::vector<float>(static_cast<std::size_t>(shape.numel()), 0.5F), shapes[name] = shape;
    });
  };
  add("bert.pooler.dense.weight", {hidden, hidden});
  add("bert.pooler.dense.bias", {hidden});
  EXPECT_EQ(error(), "");
  EXPECT_EQ(imported(folder()).all_values(), usual.all_values());
  EXPECT_EQ(warning(), folder().string() + " has a pooler (pooler.dense), which its class leaves out");
  add("bert.pooler.other", {hidden});
  expect_error("tensor \"bert.pooler.other\": the Megatron-BERT of config.json has none");
}

TEST_F(SpoiltTask, AHeadOfATaskMustBeWhole) {
  copy("bert_classes");
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    for (const char* gone : {"classifier.weight", "classifier.bias", "bert.pooler.dense.bias"})
      values.erase(gone), shapes.erase(gone);
  });
  for (const char* gone : {"classifier.weight", "classifier.bias", "bert.pooler.dense.bias"})
    expect_error(std::string("tensor \"") + gone + "\" is missing");
  copy("bert_classes");
  edit("config.json", [](json& config) { config["id2label"] = {{"0", "yes"}, {"2", "no"}}; });
  expect_error("must be an object with a text for each number from 0 on");
  edit("config.json", [](json& config) { config["id2label"] = {{"0", "score"}}; });
  expect_error("must have at least two labels: regression is not built");
  edit("config.json", [](json& config) { config.erase("id2label"); });
  expect_error("tensor \"classifier.weight\" shape = [3, 16]: must be [2, 16] by config.json");
  edit("config.json", [](json& config) { config["num_labels"] = 3; });
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace megalith::convert
