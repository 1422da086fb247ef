#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/comm/threads/thread_world.h"
#include "megalith/convert/hf_model.h"
#include "megalith/eval/inference_model.h"
#include "megalith/grid/parallel_config.h"

// What BERTs of Hugging Face folders compute, by eval::InferenceModel.
namespace megalith::convert {

/// A sample: two segments or one, tokens whose targets are asked for, and the class of the order.
struct BertText {
  std::vector<std::int32_t> ids, types, targets;  ///< targets: of each token, -1: none
  std::int32_t label = -1;
};

/// Whose results are asked for, beside those of samples.
enum class BertRows : std::uint8_t { none, all_tokens };

class BertTexts final : public eval::Samples {
 public:
  BertTexts(std::vector<BertText> texts, Index max_tokens, BertRows rows = BertRows::all_tokens)
      : texts_(std::move(texts)), max_tokens_(max_tokens), rows_(rows) {}
  Index count() const override { return std::ssize(texts_); }
  Index tokens(Index sample) const override { return std::ssize(at(sample).ids); }
  Index rows(Index sample) const override { return rows_ == BertRows::none ? 0 : tokens(sample); }
  eval::PassShape shape(Index sample) const override {
    return eval::pass_shape(tokens(sample), rows(sample), max_tokens_);
  }
  void fill(Index sample, const eval::SampleInputs& to) const override {
    const BertText& text = at(sample);
    for (std::size_t i = 0; i < text.ids.size(); ++i) {
      to.tokens[i] = text.ids[i];
      to.types[i] = text.types[i];
      if (rows_ == BertRows::none) continue;
      to.rows[i] = static_cast<std::int32_t>(i);
      to.targets[i] = text.targets.empty() ? -1 : text.targets[i];
    }
    to.length = static_cast<std::int32_t>(text.ids.size());
    to.label = text.label;
  }
  /// Asks for ln p of this id at each token.
  void set_targets(std::int32_t id) {
    for (BertText& text : texts_) text.targets.assign(text.ids.size(), id);
  }
  const BertText& at(Index sample) const { return texts_[static_cast<std::size_t>(sample)]; }

 private:
  std::vector<BertText> texts_;
  Index max_tokens_;
  BertRows rows_;
};

/// The samples of an expected.json.
inline BertTexts bert_texts_of(const nlohmann::json& expected, Index max_tokens, BertRows rows = BertRows::all_tokens) {
  std::vector<BertText> texts;
  for (const nlohmann::json& sample : expected.at("samples")) {
    BertText text{.ids = sample.at("ids"), .types = sample.at("types"), .targets = {}, .label = sample.at("label")};
    text.targets.assign(text.ids.size(), -1);
    for (std::size_t i = 0; i < sample.at("rows").size(); ++i)
      text.targets.at(sample.at("rows")[i].get<std::size_t>()) = sample.at("targets")[i];
    texts.push_back(std::move(text));
  }
  return {std::move(texts), max_tokens, rows};
}

/// Runs use(model, is_first) on every rank of a grid, with the values of a folder.
struct HfRun {
  io::Path folder;
  DType dtype = DType::f64;
  grid::ParallelSizes grid = {};
  std::vector<eval::AskedResult> results = {};
  std::function<void(const Tensor& values)> change = [](const Tensor&) {};  ///< of parameters, as they are read
};
template <class Use>
void with_hf_model(io::Fs& fs, const HfRun& run, model::ModelConfig config, const BertTexts& texts, const Use& use) {
  const HfModel hf{read_hf_config(fs, run.folder).family, config};
  config.padded_vocab_size = model::padded_vocab_size(config.vocab_size, run.grid.tp);
  comm::run_ranks(run.grid.world_size, [&](comm::World& world) {
    eval::InferenceModel model({.model = config, .dtype = run.dtype, .batch = 2, .results = run.results}, world,
                               comm::make_mesh(world, grid::resolve(run.grid)), eval::count_shapes(texts));
    model.allocate();
    HfReader reader(fs, run.folder, hf, 1234);
    model.fill_params(run.dtype, [&](const TensorSlice& slice, const Tensor& values) {
      reader.read(slice, values);
      run.change(values);
    });
    use(model, world.rank() == 0);
  });
}

}  // namespace megalith::convert
