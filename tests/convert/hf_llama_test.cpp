#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/convert/hf_family.h"

#include "tests/convert/hf_folders.h"

// LlamaForCausalLM folders that transformers wrote: its logits, its bytes, and what is refused.
namespace megalith::convert {
namespace {

class HfLlama : public ::testing::TestWithParam<const char*> {};

TEST_P(HfLlama, HasTheLogitsOfTransformers) {
  const HfCase one(GetParam());
  EXPECT_LT(greatest_difference(one, one.folder), 1e-4);
}

TEST_P(HfLlama, IsWrittenAsItWasRead) { expect_same_when_written(HfCase(GetParam())); }

INSTANTIATE_TEST_SUITE_P(All, HfLlama, ::testing::Values("llama_untied", "llama_tied", "llama_files", "llama_biases"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HfLlamaConfig, ReadsBothSpellings) {
  const model::ModelConfig newer = read_hf_config(*kFs, HfCase("llama_untied").folder).config;
  EXPECT_EQ(newer.family, "llama");
  EXPECT_EQ(newer.num_kv_heads, 3);
  EXPECT_EQ(newer.head_dim, 6);
  EXPECT_EQ(newer.norm_eps, 1e-6);
  EXPECT_EQ(newer.rope_theta, 500);
  EXPECT_EQ(newer.seq_len, 16);
  EXPECT_EQ(newer.tying, model::Tying::untied);
  EXPECT_EQ(newer.biases, nn::Biases::none);
  const model::ModelConfig tied = read_hf_config(*kFs, HfCase("llama_tied").folder).config;
  EXPECT_EQ(tied.tying, model::Tying::tied);
  EXPECT_EQ(tied.rope_scaling, ops::RopeScaling::linear);
  EXPECT_EQ(tied.rope_factor, 2);
  const model::ModelConfig older = read_hf_config(*kFs, HfCase("llama_files").folder).config;
  EXPECT_EQ(older.rope_theta, 50);
  EXPECT_EQ(older.rope_scaling, ops::RopeScaling::llama3);
  EXPECT_EQ(older.rope_factor, 4);
  EXPECT_EQ(older.rope_original_seq_len, 12);
  EXPECT_EQ(read_hf_config(*kFs, HfCase("llama_biases").folder).config.biases, nn::Biases::all);
}

class SpoiltLlama : public SpoiltFolder {};

TEST_F(SpoiltLlama, AConfigThatMeansSomethingElseIsRefused) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const json dynamic = {{"type", "dynamic"}, {"factor", 4.0}};
  const json linear = {{"rope_type", "linear"}, {"factor", 0.5}};
  const json nested = {{"full_attention", {{"rope_type", "default"}}}};
  const struct {
    const char* key;
    json value;
    const char* text;
  } cases[] = {
      {"model_type", "mamba",
       "model_type = \"mamba\": must be gpt2, llama, mixtral, olmoe, qwen2_moe, qwen3_moe, bert or megatron-bert: "
       "other families are not built yet"},
      {"hidden_act", "gelu", "hidden_act = \"gelu\": must be silu"},
      {"rope_parameters", yarn, "rope_parameters.rope_type = \"yarn\": must be default, linear or llama3"},
      {"rope_parameters", dynamic, "rope_parameters.type = \"dynamic\": must be default, linear or llama3"},
      {"rope_parameters", linear, "rope_parameters.factor = 0.5: must be at least 1"},
      {"rope_parameters", nested,
       "rope_parameters.full_attention = {\"rope_type\":\"default\"}: this key is not known"},
      {"rope_parameters", 7, "rope_parameters = 7: must be an object"},
      {"rope_scaling", linear, "must not differ from rope_parameters; remove it"},
      {"rope_theta", 600.0, "rope_theta = 600.0: must not differ from rope_parameters.rope_theta; remove it"},
      {"rope_theta", -1, "rope_theta = -1: must be a number above 0"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor = 0.5: must be 1"},
      {"clip_qkv", 8.0, "clip_qkv = 8.0: must be null"},
      {"sliding_window", 4096, "sliding_window = 4096: must be null: attention to a window"},
      {"layer_types", {"full_attention", "sliding_attention"}, "must be full_attention: other kinds"},
      {"pretraining_tp", 2, "pretraining_tp = 2: must be 1"},
      {"mlp_bias", true, "mlp_bias = true: must be false without attention_bias"},
      {"attention_bias", "yes", "attention_bias = \"yes\": must be true or false"},
      {"head_dim", 7, "head_dim = 7: 7 is odd; rotations turn pairs"},
      {"head_dim", 8, "tensor \"model.layers.0.self_attn.q_proj.weight\" shape = [36, 24]: must be [48, 24] by config"},
      {"num_key_value_heads", 4, "num_key_value_heads = 4: must divide num_attention_heads = 6"},
      {"intermediate_size", nullptr, "intermediate_size = null: must be a whole number from 1 to"},
      {"vocab_size", 38, "tensor \"model.embed_tokens.weight\" shape = [37, 24]: must be [38, 24] by config.json"},
      {"num_hidden_layers", 1, "tensor \"model.layers.1.input_layernorm.weight\": the Llama of config.json has none"},
      {"num_hidden_layers", 3, "tensor \"model.layers.2.input_layernorm.weight\" is missing"},
      {"tie_word_embeddings", true, "tensor \"lm_head.weight\": must equal embed_tokens.weight, to which it is tied"},
      {"attention_bias", true, "tensor \"model.layers.0.self_attn.q_proj.bias\" is missing"}};
  for (const auto& [key, value, text] : cases) {
    copy("llama_untied");
    EXPECT_EQ(error(), "");
    edit("config.json", [&, &key = key, &value = value](json& config) { config[key] = value; });
    expect_error(text);
  }
}

// The library takes the key at the top before that in rope_scaling (or rope_parameters), and seq_len where there is
// none.
TEST_F(SpoiltLlama, TheOriginalLengthOfLlama3MayStandInTwoPlaces) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::tuple<json, json, Index> cases[] = {
      {nullptr, 12, 12}, {8, nullptr, 8}, {8, 12, 8}, {12, 8, 12}, {nullptr, nullptr, 16}};
  for (const char* const scaling : {"rope_scaling", "rope_parameters"}) {
    for (const auto& [top, inner, want] : cases) {
      SCOPED_TRACE(testing::Message() << scaling << ": top " << top << ", inner " << inner);
      copy("llama_files");
      edit("config.json", [&, &top = top, &inner = inner](json& config) {
        const json rope = config["rope_scaling"];
        config.erase("rope_scaling");
        config[scaling] = rope;
        config[kOriginal] = top;
        config[scaling][kOriginal] = inner;
        if (top.is_null()) config.erase(kOriginal);
        if (inner.is_null()) config[scaling].erase(kOriginal);
      });
      EXPECT_EQ(error(), "");
      EXPECT_EQ(read_hf_config(*kFs, folder()).config.rope_original_seq_len, want);
    }
  }
}

TEST_F(SpoiltLlama, AFamilyIsFoundByItsArchitecture) {
  copy("llama_untied");
  edit("config.json", [](json& config) { config.erase("model_type"); });
  EXPECT_EQ(error(), "");
  edit("config.json", [](json& config) { config["architectures"] = {"MambaForCausalLM"}; });
  expect_error(
      "architectures = [\"MambaForCausalLM\"]: must be GPT2LMHeadModel, LlamaForCausalLM, MixtralForCausalLM, O");
  edit("config.json", [](json& config) { config.erase("architectures"); });
  expect_error("model_type = nothing: must be gpt2, llama, mixtral");
}

TEST_F(SpoiltLlama, WindowsThatAreSwitchedOffAreRead) {
  copy("llama_untied");
  edit("config.json", [](json& config) {
    config["sliding_window"] = 4096;
    config["use_sliding_window"] = false;
    config["clip_qkv"] = nullptr;
    config["layer_types"] = {"full_attention", "full_attention"};
  });
  EXPECT_EQ(error(), "");
}

TEST_F(SpoiltLlama, FilesMustBeThoseOfTheIndex) {
  const auto index = [&](const std::function<void(json&)>& change) {
    copy("llama_files");
    EXPECT_EQ(error(), "");
    edit("model.safetensors.index.json", change);
  };
  index([](json& root) { root.erase("weight_map"); });
  expect_error("weight_map: must be an object with the file of each tensor");
  index([](json& root) { root["weight_map"]["lm_head.weight"] = "../model-00002-of-00002.safetensors"; });
  expect_error(
      "weight_map.lm_head.weight = \"../model-00002-of-00002.safetensors\": must be the name of a *.safetensors");
  index([](json& root) { root["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"; });
  expect_error(
      "model-00001-of-00002.safetensors] tensor \"lm_head.weight\" is missing: model.safetensors.index.json "
      "names this file for it");
  index([](json& root) { root["weight_map"].erase("lm_head.weight"); });
  expect_error("tensor \"lm_head.weight\": model.safetensors.index.json does not name it");
  index([](json& root) { root["weight_map"]["more.weight"] = "model-00003-of-00003.safetensors"; });
  expect_error("weight_map.more.weight = \"model-00003-of-00003.safetensors\": there is no such file");
  copy("llama_files");
  std::filesystem::copy_file(HfCase("llama_untied").folder / "model.safetensors", folder() / "model.safetensors");
  expect_error("/model.safetensors] the index model.safetensors.index.json does not name this file");
  std::filesystem::rename(folder() / "model.safetensors", folder() / "consolidated.safetensors");
  EXPECT_EQ(error(), "") << "the same model in another layout";
  copy("llama_files");
  std::filesystem::remove(folder() / "model-00002-of-00002.safetensors");
  expect_error("= \"model-00002-of-00002.safetensors\": there is no such file");
  copy("llama_untied");
  std::filesystem::remove(folder() / "model.safetensors");
  EXPECT_NE(error().find("model.safetensors"), std::string::npos) << error();
}

TEST_F(SpoiltLlama, TensorsMustBeThoseOfTheConfig) {
  copy("llama_untied");
  rewrite([](Tensors& values, auto& shapes) {
    shapes["model.layers.0.self_attn.q_norm.weight"] = {6};
    values["model.layers.0.self_attn.q_norm.weight"].resize(6);
  });
  expect_error(
      "model.safetensors] tensor \"model.layers.0.self_attn.q_norm.weight\": the Llama of config.json has none");
  copy("llama_untied");
  rewrite([](Tensors&, auto& shapes) { shapes.erase("model.layers.1.mlp.up_proj.weight"); });
  expect_error("model.safetensors] tensor \"model.layers.1.mlp.up_proj.weight\" is missing");
  copy("llama_untied");
  rewrite([](Tensors&, auto& shapes) { shapes["model.layers.1.mlp.up_proj.weight"] = {24, 20}; });
  expect_error("tensor \"model.layers.1.mlp.up_proj.weight\" shape = [24, 20]: must be [20, 24] by config.json");
  copy("llama_untied");
  rewrite([](Tensors& values, auto& shapes) {  // older versions saved this one
    shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {3};
    values["model.layers.0.self_attn.rotary_emb.inv_freq"].resize(3);
  });
  EXPECT_EQ(error(), "");
}

TEST_F(SpoiltLlama, ATiedHeadMayBeThereIfItIsTheTokenTable) {
  copy("llama_tied");
  rewrite([](Tensors& values, auto& shapes) {
    shapes["lm_head.weight"] = {37, 24};
    values["lm_head.weight"] = values["model.embed_tokens.weight"];
  });
  EXPECT_EQ(error(), "");
  rewrite([](Tensors& values, auto&) { values["lm_head.weight"][5] += 1; });
  expect_error("tensor \"lm_head.weight\": must equal embed_tokens.weight, to which it is tied");
}

TEST_F(SpoiltLlama, NamesMayLackTheirPrefix) {
  copy("llama_tied");
  const std::vector<double> want = imported(folder()).all_values();
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    std::map<std::string, Shape> bare;
    for (const auto& [name, shape] : shapes) {
      bare[name.substr(6)] = shape;
      values[name.substr(6)] = values[name];
    }
    shapes = bare;
  });
  EXPECT_EQ(imported(folder()).all_values(), want);
}

TEST_F(SpoiltLlama, BiasesOfQKAndVAloneNeedZerosForO) {
  copy("llama_biases");
  edit("config.json", [](json& config) { config["mlp_bias"] = false; });
  rewrite([](Tensors&, std::map<std::string, Shape>& shapes) {
    std::erase_if(shapes, [](const auto& one) {
      return one.first.ends_with(".bias") && one.first.find(".mlp.") != std::string::npos;
    });
  });
  expect_error("tensor \"model.layers.0.self_attn.o_proj.bias\": must be zeros: with this config.json only q, k and v");
  rewrite([](Tensors&, std::map<std::string, Shape>& shapes) {
    std::erase_if(shapes, [](const auto& one) { return one.first.ends_with("o_proj.bias"); });
  });
  const HfModel hf = read_hf_config(*kFs, folder());
  EXPECT_EQ(hf.config.biases, nn::Biases::qkv);
  const RandomModel model = imported(folder());
  // The export has the zeros, as the class has those biases.
  kFs->make_dir(dir_ / "out");
  export_hf(*kFs, dir_ / "out", values_of(padded(hf.config), model.params), {.end_of_document = 7});
  EXPECT_EQ(tensors_of(dir_ / "out").size(), tensors_of(folder()).size() + 2);
  EXPECT_EQ(imported(dir_ / "out").all_values(), model.all_values());
}

TEST(HfLlamaExport, SeveralFilesHoldTheSameTensors) {
  const HfCase one("llama_untied");
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  const RandomModel model = imported(one.folder);
  export_hf(*kFs, dir.path(), values_of(padded(hf.config), model.params),
            {.end_of_document = 7, .max_file_bytes = 12'000});
  const std::vector<std::string> names = kFs->list(dir.path());
  ASSERT_EQ(names.size(), 6u);
  EXPECT_EQ(names[1], "model-00001-of-00004.safetensors");
  EXPECT_EQ(names.back(), "model.safetensors.index.json");
  for (std::size_t i = 1; i < 5; ++i) EXPECT_LT(kFs->file_size(dir / names[i]), 14'000u) << "12,000 and a header";
  EXPECT_EQ(tensors_of(dir.path()), tensors_of(one.folder));
  EXPECT_EQ(imported(dir.path()).all_values(), model.all_values());
  const json index = json::parse(read_all(dir / names.back()));
  EXPECT_EQ(index.at("metadata").at("total_size"), 39840);
}

TEST(HfLlamaExport, AModelOfNoFamilyIsRefused) {
  model::ModelConfig config = model::llama_defaults();
  config.num_layers = 1;
  config.hidden_size = 8;
  config.num_heads = 2;
  config.qk_norm = nn::QkNorm::head;
  EXPECT_EQ(error_of<InputError>([&] { hf_family_for(config); }),
            "[export-hf] the checkpoint's model is of no family that can be written: gpt2 has model.norm = layer, "
            "llama has model.qk_norm = none, mixtral has [moe], olmoe has [moe], qwen2_moe has [moe], qwen3_moe has "
            "[moe]");
  model::ModelConfig gpt2{.num_layers = 1, .hidden_size = 8, .num_heads = 2};
  EXPECT_EQ(architecture_of(hf_family_for(gpt2), gpt2), "GPT2LMHeadModel");
  gpt2.norm_placement = nn::NormPlacement::post;
  EXPECT_NE(error_of<InputError>([&] { hf_family_for(gpt2); }).find("gpt2 has model.norm_placement = pre, llama has "),
            std::string::npos);
  gpt2.norm_placement = nn::NormPlacement::pre;
  gpt2.norm_eps = 1e-6;
  EXPECT_NE(error_of<InputError>([&] { hf_family_for(gpt2); }).find("gpt2 has model.norm_eps = 1e-05, llama has "),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::convert
