#include "megalith/convert/hf_gpt2.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/comm/mesh.h"
#include "megalith/comm/world.h"
#include "megalith/model/gpt_chunk.h"

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

/// All parameters of a model on one rank, with random values.
struct Model {
  explicit Model(const model::ModelConfig& config = kModel, std::uint64_t seed = 1, DType dtype = DType::f32)
      : world(comm::dry_world(0, 1)),
        params(model::declare_gpt(model::model_spec(config), {{{0, config.num_layers}, true, true}},
                                  {comm::make_mesh(*world, grid::resolve({})).tp, nn::SequenceParallel::off, 1}),
               {dtype, dtype}) {
    params.allocate(ledger);
    const RandomSite random{.seed = seed};
    std::uint64_t n = 0;
    for (Param& param : params.params()) {
      const Tensor values = param.without_padding(param.value);
      dispatch_wide(dtype, "test", [&]<class T>() {
        for (T& value : values.span<T>())
          value = static_cast<T>(static_cast<float>(random.word(n++)) * 0x1p-32f - 0.5f);
      });
    }
  }
  float at(const char* name, Index i) { return params.at(name).value.data<float>()[i]; }
  std::unique_ptr<comm::World> world;
  MemoryLedger ledger{Device::cpu};
  ParamBuffer params;
};

std::vector<double> all_values(Model& model) {
  std::vector<double> all;
  for (const Param& param : model.params.params()) {
    dispatch_wide(param.value.dtype(), "test", [&]<class T>() {
      for (const T value : param.without_padding(param.value).span<T>()) all.push_back(static_cast<double>(value));
    });
  }
  return all;
}

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
  Model source, loaded(kModel, 2);
  export_hf_gpt2(*fs_, folder(), kModel, source.params, 10);
  import_hf_gpt2(*fs_, folder(), kModel, loaded.params);
  EXPECT_EQ(all_values(source), all_values(loaded));
  const model::ModelConfig config = read_hf_gpt2_config(*fs_, folder());
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.ffn_hidden_size, 10);
  EXPECT_EQ(config.vocab_size, 11);
  EXPECT_EQ(config.dropout, 0.25);
  EXPECT_EQ(config.attention_dropout, 0.1);
}

TEST_F(HfGpt2, LaysTensorsOutAsTheLibraryDoes) {
  Model source;
  export_hf_gpt2(*fs_, folder(), kModel, source.params, 10);
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
  Model source, loaded(kModel, 2, DType::f64);
  export_hf_gpt2(*fs_, folder(), kModel, source.params, 10);
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
  import_hf_gpt2(*fs_, dir_ / "half", kModel, loaded.params);
  const std::vector<double> want = all_values(source), got = all_values(loaded);
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.002) << i;
}

TEST_F(HfGpt2, RefusesWhatItWouldComputeOtherwise) {
  Model source, loaded;
  export_hf_gpt2(*fs_, folder(), kModel, source.params, 10);
  const auto error = [&] {
    try {
      import_hf_gpt2(*fs_, folder(), read_hf_gpt2_config(*fs_, folder()), loaded.params);
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
        std::tuple{"model_type", nlohmann::json("llama"), "model_type = \"llama\""},
        std::tuple{"n_layer", nlohmann::json("two"), "n_layer = \"two\": must be a whole number"}}) {
    rewrite_config(key, value);
    EXPECT_NE(error().find(text), std::string::npos) << error();
    std::ofstream(folder() / "config.json") << config;
  }
  model::ModelConfig deeper = kModel;
  deeper.num_layers = 3;
  Model three(deeper);
  EXPECT_THROW(import_hf_gpt2(*fs_, folder(), deeper, three.params), InputError);
  model::ModelConfig flat = kModel;
  flat.num_layers = 1;
  Model one(flat);
  EXPECT_THROW(import_hf_gpt2(*fs_, folder(), flat, one.params), InputError);
}

}  // namespace
}  // namespace megalith::convert
