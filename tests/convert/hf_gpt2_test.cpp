#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/convert/hf_family.h"

#include "tests/convert/hf_values.h"
#include "tests/convert/random_model.h"
#include "tests/io/temp_dir.h"

namespace megalith::convert {
namespace {

const model::ModelConfig kModel{.num_layers = 2,
                                .hidden_size = 6,
                                .num_heads = 3,
                                .ffn_hidden_size = 10,
                                .seq_len = 5,
                                .vocab_size = 11,
                                .padded_vocab_size = 16,
                                .dropout = 0.25};

class HfGpt2 : public ::testing::Test {
 protected:
  HfGpt2() { fs_->make_dir(folder()); }
  io::Path folder() const { return dir_ / "hf"; }
  void rewrite_config(const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(read_all(folder() / "config.json"));
    config[key] = value;
    std::ofstream(folder() / "config.json") << config.dump();
  }
  const std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
};

TEST_F(HfGpt2, ARoundTripKeepsEveryTensor) {
  RandomModel source(kModel), loaded(kModel, 2);
  export_hf(*fs_, folder(), values_of(kModel, source.params), {.end_of_document = 10});
  import_hf(*fs_, folder(), {&kHfGpt2, kModel}, loaded.params);
  EXPECT_EQ(source.all_values(), loaded.all_values());
  const model::ModelConfig config = read_hf_config(*fs_, folder()).config;
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.ffn_hidden_size, 10);
  EXPECT_EQ(config.vocab_size, 11);
  EXPECT_EQ(config.dropout, 0.25);
  EXPECT_EQ(config.attention_dropout, 0.1);
}

TEST_F(HfGpt2, LaysTensorsOutAsTheLibraryDoes) {
  RandomModel source(kModel);
  export_hf(*fs_, folder(), values_of(kModel, source.params), {.end_of_document = 10});
  const io::MappedFile file = fs_->map(folder() / "model.safetensors");
  const auto header = checkpoint::parse_safetensors(file.bytes(), "test");
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.tensors.size(), 2u + 2 + 12 * 2);
  const auto theirs = [&](const char* name, Index i) {
    float value = 0;
    std::memcpy(&value, file.bytes().data() + header.find(name)->begin + 4 * i, 4);
    return value;
  };
  EXPECT_EQ(header.find("transformer.wte.weight")->shape, (Shape{11, 6}));
  EXPECT_EQ(theirs("transformer.wte.weight", 65), source.at("embedding.token.weight", 65));
  // c_fc [in, out]: input 4, output 7.
  EXPECT_EQ(theirs("transformer.h.1.mlp.c_fc.weight", 4 * 10 + 7), source.at("layers.1.mlp.up.weight", 7 * 6 + 4));
  // c_attn: the key (part 1) of head 2, dimension 1, from input 3. Heads are 2 wide.
  EXPECT_EQ(theirs("transformer.h.0.attn.c_attn.weight", 3 * 18 + 6 + 2 * 2 + 1),
            source.at("layers.0.attention.qkv.weight", (2 * 6 + 2 + 1) * 6 + 3));
  EXPECT_EQ(theirs("transformer.h.0.attn.c_attn.bias", 12 + 0 * 2 + 1),
            source.at("layers.0.attention.qkv.bias", 0 * 6 + 4 + 1));
}

TEST_F(HfGpt2, ReadsHalfPrecisionAndNamesWithoutPrefixAndExtras) {
  RandomModel source(kModel), loaded(kModel, 2, DType::f64);
  export_hf(*fs_, folder(), values_of(kModel, source.params), {.end_of_document = 10});
  const io::MappedFile file = fs_->map(folder() / "model.safetensors");
  const auto header = checkpoint::parse_safetensors(file.bytes(), "test");
  std::vector<checkpoint::SafeTensorsWriter::Entry> entries;
  for (const checkpoint::TensorInfo& info : header.tensors)
    entries.push_back({info.name.substr(12), DType::bf16, info.shape});
  entries.push_back({"h.0.attn.bias", DType::u8, {1, 1, 5, 5}});
  fs_->make_dir(dir_ / "half");
  checkpoint::SafeTensorsWriter writer(*fs_, dir_ / "half/model.safetensors", entries);
  for (const checkpoint::TensorInfo& info : header.tensors) {
    std::vector<bfloat16> half(static_cast<std::size_t>(info.shape.numel()));
    for (std::size_t i = 0; i < half.size(); ++i) {
      float value = 0;
      std::memcpy(&value, file.bytes().data() + info.begin + 4 * i, 4);
      half[i] = bfloat16(value);
    }
    writer.write(Tensor(half.data(), info.shape, DType::bf16));
  }
  std::vector<std::uint8_t> mask(25);
  writer.write(Tensor(mask.data(), {1, 1, 5, 5}, DType::u8));
  writer.finish();
  import_hf(*fs_, dir_ / "half", {&kHfGpt2, kModel}, loaded.params);
  const std::vector<double> want = source.all_values(), got = loaded.all_values();
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.002) << i;
}

TEST_F(HfGpt2, RefusesWhatItWouldComputeOtherwise) {
  RandomModel source(kModel), loaded(kModel);
  export_hf(*fs_, folder(), values_of(kModel, source.params), {.end_of_document = 10});
  const auto error = [&] {
    try {
      import_hf(*fs_, folder(), read_hf_config(*fs_, folder()), loaded.params);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string config = read_all(folder() / "config.json");
  EXPECT_EQ(error(), "");
  for (const auto& [key, value, text] :
       {std::tuple{"activation_function", nlohmann::json("relu"), "activation_function = \"relu\": must be gelu_new"},
        std::tuple{"layer_norm_epsilon", nlohmann::json(1e-6), "layer_norm_epsilon"},
        std::tuple{"tie_word_embeddings", nlohmann::json(false), "tie_word_embeddings"},
        std::tuple{"model_type", nlohmann::json("mamba"), "model_type = \"mamba\": must be gpt2, llama, mixtral"},
        std::tuple{"n_layer", nlohmann::json("two"), "n_layer = \"two\": must be a whole number"}}) {
    rewrite_config(key, value);
    EXPECT_NE(error().find(text), std::string::npos) << error();
    std::ofstream(folder() / "config.json") << config;
  }
  model::ModelConfig deeper = kModel;
  deeper.num_layers = 3;
  RandomModel three(deeper);
  EXPECT_THROW(import_hf(*fs_, folder(), {&kHfGpt2, deeper}, three.params), InputError);
  model::ModelConfig flat = kModel;
  flat.num_layers = 1;
  RandomModel one(flat);
  EXPECT_THROW(import_hf(*fs_, folder(), {&kHfGpt2, flat}, one.params), InputError);
}

}  // namespace
}  // namespace megalith::convert
