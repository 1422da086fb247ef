#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/convert/hf_family.h"

#include "tests/convert/hf_folders.h"

// Folders of models with experts that transformers wrote: its logits, its bytes, and what is refused.
namespace megalith::convert {
namespace {

model::ModelConfig config_of(const char* name) { return read_hf_config(*kFs, HfCase(name).folder).config; }

class HfMoe : public ::testing::TestWithParam<const char*> {};

TEST_P(HfMoe, HasTheLogitsOfTransformers) {
  const HfCase one(GetParam());
  EXPECT_LT(greatest_difference(one, one.folder), 1e-4);
}

TEST_P(HfMoe, IsWrittenAsItWasRead) { expect_same_when_written(HfCase(GetParam())); }

INSTANTIATE_TEST_SUITE_P(All, HfMoe, ::testing::Values("mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HfMoeTensors, ExpertsMayBeFused) {
  const HfCase one("mixtral_fused");
  EXPECT_LT(greatest_difference(one, one.folder), 1e-4);
  // Written as every version of the library reads them.
  const TempDir dir;
  const RandomModel model = imported(one.folder);
  export_hf(*kFs, dir.path(), values_of(padded(config_of("mixtral_fused")), model.params), {.end_of_document = 7});
  const auto written = tensors_of(dir.path()), of_other = tensors_of(HfCase("mixtral").folder);
  EXPECT_TRUE(std::ranges::equal(
      written, of_other, {}, [](const auto& a) { return a.first; }, [](const auto& b) { return b.first; }));
  EXPECT_EQ(imported(dir.path()).all_values(), model.all_values());
}

TEST(HfMoeConfig, IsThatOfItsFamily) {
  const model::ModelConfig mixtral = config_of("mixtral");
  EXPECT_EQ(mixtral.moe.num_experts, 5);
  EXPECT_EQ(mixtral.moe.top_k, 2);
  EXPECT_EQ(mixtral.moe.ffn_hidden_size, 20);
  EXPECT_EQ(mixtral.moe.pattern, "m");
  EXPECT_FALSE(mixtral.moe.score_before_top_k);
  EXPECT_EQ(mixtral.moe.aux_loss, 0.001);
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.rope_theta, 500);
  EXPECT_EQ(mixtral.head_dim, 10);
  EXPECT_EQ(mixtral.biases, nn::Biases::none);
  const model::ModelConfig olmoe = config_of("olmoe");
  EXPECT_EQ(olmoe.moe.top_k, olmoe.moe.num_experts);
  EXPECT_TRUE(olmoe.moe.score_before_top_k);
  EXPECT_FALSE(olmoe.moe.normalize_top_k);
  EXPECT_EQ(olmoe.qk_norm, nn::QkNorm::all);
  EXPECT_EQ(olmoe.biases, nn::Biases::all);
  EXPECT_EQ(olmoe.rope_scaling, ops::RopeScaling::linear);
  EXPECT_EQ(olmoe.rope_factor, 2);
  const model::ModelConfig qwen2 = config_of("qwen2_moe");
  EXPECT_EQ(qwen2.moe.pattern, "dm");
  EXPECT_EQ(qwen2.ffn_hidden_size, 20);
  EXPECT_EQ(qwen2.moe.ffn_hidden_size, 12);
  EXPECT_EQ(qwen2.moe.shared_ffn_hidden_size, 10);
  EXPECT_TRUE(qwen2.moe.shared_gate);
  EXPECT_EQ(qwen2.biases, nn::Biases::qkv);
  const model::ModelConfig qwen3 = config_of("qwen3_moe");
  EXPECT_EQ(qwen3.moe.num_experts, 4);
  EXPECT_EQ(qwen3.moe.pattern, "md");
  EXPECT_TRUE(qwen3.moe.normalize_top_k);
  EXPECT_EQ(qwen3.moe.shared_ffn_hidden_size, 0);
  EXPECT_EQ(qwen3.qk_norm, nn::QkNorm::head);
  EXPECT_EQ(qwen3.tying, model::Tying::tied);
}

class SpoiltMoe : public SpoiltFolder {
 protected:
  /// Sets a key of a copy's config.json.
  void set(const char* name, const char* key, const json& value) {
    copy(name);
    EXPECT_EQ(error(), "");
    edit("config.json", [&](json& config) { config[key] = value; });
  }
  model::ModelConfig read() { return read_hf_config(*kFs, folder()).config; }
};

TEST_F(SpoiltMoe, AConfigThatMeansSomethingElseIsRefused) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const json dynamic = {{"type", "dynamic"}, {"factor", 4.0}};
  const struct {
    const char *name, *key;
    json value;
    const char* text;
  } cases[] = {
      {"mixtral", "rope_parameters", yarn, "rope_parameters.rope_type = \"yarn\": must be default, linear or llama3"},
      {"olmoe", "rope_scaling", dynamic, "rope_scaling.type = \"dynamic\": must be default, linear or llama3"},
      {"mixtral", "hidden_act", "gelu", "hidden_act = \"gelu\": must be silu"},
      {"mixtral", "sliding_window", 4096, "sliding_window = 4096: must be null: attention to a window"},
      {"mixtral", "router_jitter_noise", 0.1, "router_jitter_noise = 0.1: must be 0"},
      {"mixtral", "num_local_experts", 1, "num_local_experts = 1: must be at least 2"},
      {"mixtral", "num_local_experts", 1025, "num_local_experts = 1025: must be a whole number from 1 to 1024"},
      {"mixtral", "num_experts", 4, "num_experts = 4: must not differ from num_local_experts; remove one"},
      {"mixtral", "num_experts_per_tok", 6, "num_experts_per_tok = 6: must be at most num_local_experts = 5"},
      {"mixtral", "num_experts_per_tok", nullptr, "num_experts_per_tok = null: must be a whole number"},
      {"mixtral", "num_key_value_heads", nullptr, "num_key_value_heads = null: must be a whole number"},
      {"mixtral", "router_aux_loss_coef", -1, "router_aux_loss_coef = -1: must be a number of at least 0"},
      {"mixtral", "intermediate_size", 12, "tensor \"model.layers.0.block_sparse_moe.experts.0.w1.weight\" shape"},
      {"mixtral", "num_local_experts", 4, "\"model.layers.0.block_sparse_moe.gate.weight\" shape = [5, 24]: must be"},
      {"mixtral", "model_type", "qwen3_moe", "moe_intermediate_size = nothing: must be a whole number"},
      {"olmoe", "clip_qkv", 8.0, "clip_qkv = 8.0: must be null"},
      {"olmoe", "head_dim", 6, "head_dim = 6: must be hidden_size / num_attention_heads"},
      {"olmoe", "attention_bias", false, "k_proj.bias\": the OLMoE of config.json has none"},
      {"qwen2_moe", "use_sliding_window", true, "sliding_window = 0: must be null: attention to a window"},
      {"qwen2_moe", "layer_types", {"full_attention", "sliding_attention"}, "must be full_attention: other kinds"},
      {"qwen2_moe", "shared_expert_intermediate_size", 0, "shared_expert_intermediate_size = 0: must be a whole"},
      {"qwen2_moe", "qkv_bias", false, "k_proj.bias\": the Qwen2-MoE of config.json has none"},
      {"qwen2_moe", "decoder_sparse_step", 1, "tensor \"model.layers.0.mlp.gate.weight\" is missing"},
      {"qwen2_moe", "decoder_sparse_step", 4, "decoder_sparse_step = 4: leaves none of 3 layers with experts"},
      {"qwen3_moe", "mlp_only_layers", {0, 1, 2}, "mlp_only_layers = [0,1,2]: leaves none of 3 layers with experts"},
      {"qwen3_moe", "mlp_only_layers", {-1}, "mlp_only_layers = [-1]: must be a list of whole numbers from 0 on"},
      {"qwen3_moe", "moe_intermediate_size", 20, "experts.0.gate_proj.weight\" shape = [12, 24]: must be [20, 24] by"}};
  for (const auto& [name, key, value, text] : cases) {
    set(name, key, value);
    expect_error(text);
  }
}

TEST_F(SpoiltMoe, SpellingsOfSeveralVersionsAreRead) {
  set("qwen3_moe", "sliding_window", 4096);  // use_sliding_window is false
  EXPECT_EQ(error(), "");
  edit("config.json", [](json& config) {
    for (const char* key : {"use_sliding_window", "decoder_sparse_step", "attention_bias"}) config.erase(key);
    config["num_experts"] = config["num_local_experts"];
    config.erase("num_local_experts");
    config["rope_theta"] = config["rope_parameters"]["rope_theta"];
    config["rope_scaling"] = nullptr;
    config.erase("rope_parameters");
  });
  EXPECT_EQ(error(), "");
  EXPECT_EQ(read().moe.num_experts, 4);
  EXPECT_EQ(read().rope_theta, 500);
  set("mixtral", "router_jitter_noise", nullptr);
  edit("config.json", [](json& config) { config.erase("rope_parameters"); });
  EXPECT_EQ(read().rope_theta, 1e6) << "the class's own";
}

TEST_F(SpoiltMoe, LayersWithExpertsArePatterns) {
  const struct {
    int layers, step;
    json dense;
    const char* pattern;
  } cases[] = {{4, 1, json::array(), "m"}, {5, 2, json::array(), "dm"}, {6, 3, json::array(), "ddm"},
               {4, 1, {0}, "dmmm"},        {4, 1, {0, 2}, "dm"},        {4, 2, {3}, "dmd"},
               {3, 1, {2, 7}, "mmd"},      {1, 1, nullptr, "m"}};
  for (const auto& [layers, step, dense, pattern] : cases) {
    copy("qwen3_moe");
    edit("config.json", [&, &layers = layers, &step = step, &dense = dense](json& config) {
      config["num_hidden_layers"] = layers;
      config["decoder_sparse_step"] = step;
      config["mlp_only_layers"] = dense;
    });
    EXPECT_EQ(read().moe.pattern, pattern);
  }
}

TEST_F(SpoiltMoe, TensorsMustBeThoseOfTheConfig) {
  using Shapes = std::map<std::string, Shape>;
  const std::string layer = "model.layers.1.", expert = layer + "block_sparse_moe.experts.";
  const auto spoil = [&](const char* name, const std::function<void(Tensors&, Shapes&)>& change) {
    copy(name);
    rewrite(change);
  };
  spoil("mixtral", [&](Tensors&, Shapes& shapes) { shapes.erase(expert + "3.w2.weight"); });
  expect_error("model.safetensors] tensor \"" + expert + "3.w2.weight\" is missing");
  spoil("mixtral", [&](Tensors& values, Shapes& shapes) {
    shapes[expert + "5.w2.weight"] = {24, 20};
    values[expert + "5.w2.weight"].resize(480);
  });
  expect_error("model.safetensors] tensor \"" + expert + "5.w2.weight\": the Mixtral of config.json has none");
  spoil("mixtral", [&](Tensors&, Shapes& shapes) { shapes[expert + "0.w2.weight"] = {20, 24}; });
  expect_error("tensor \"" + expert + "0.w2.weight\" shape = [20, 24]: must be [24, 20] by config.json");
  spoil("mixtral_fused", [&](Tensors&, Shapes& shapes) { shapes[layer + "mlp.experts.gate_up_proj"] = {5, 20, 48}; });
  expect_error("tensor \"" + layer + "mlp.experts.gate_up_proj\" shape = [5, 20, 48]: must be [5, 40, 24] by");
  spoil("mixtral_fused", [&](Tensors&, Shapes& shapes) { shapes.erase(layer + "mlp.experts.down_proj"); });
  expect_error("tensor \"" + layer + "mlp.experts.down_proj\" is missing");
  spoil("qwen2_moe", [&](Tensors&, Shapes& shapes) { shapes.erase(layer + "mlp.shared_expert_gate.weight"); });
  expect_error("tensor \"" + layer + "mlp.shared_expert_gate.weight\" is missing");
  spoil("qwen3_moe", [&](Tensors&, Shapes& shapes) { shapes[layer + "self_attn.q_norm.weight"] = {2, 5}; });
  expect_error("tensor \"" + layer + "self_attn.q_norm.weight\" shape = [2, 5]: must be [10] by config.json");
  copy("olmoe");
  std::filesystem::copy_file(HfCase("mixtral").folder / "model.safetensors", folder() / "model.safetensors");
  expect_error("/model.safetensors] the index model.safetensors.index.json does not name this file");
}

/// Which class writes a model; what each family lacks where none does.
std::string written_as(const model::ModelConfig& config) {
  std::string_view architecture;
  const std::string error =
      error_of<InputError>([&] { architecture = architecture_of(hf_family_for(config), config); });
  return error.empty() ? std::string(architecture) : error;
}

TEST(HfMoeExport, AModelIsOfTheFamilyThatHasItsParts) {
  EXPECT_EQ(written_as(config_of("mixtral")), "MixtralForCausalLM");
  EXPECT_EQ(written_as(config_of("olmoe")), "OlmoeForCausalLM");
  EXPECT_EQ(written_as(config_of("qwen2_moe")), "Qwen2MoeForCausalLM");
  EXPECT_EQ(written_as(config_of("qwen3_moe")), "Qwen3MoeForCausalLM");
  // A softmax over the chosen ones is one over all that is divided by the sum of the chosen.
  model::ModelConfig m = config_of("mixtral");
  m.moe.score_before_top_k = m.moe.normalize_top_k = true;
  EXPECT_EQ(written_as(m), "MixtralForCausalLM");
  m.moe.normalize_top_k = false;
  EXPECT_NE(written_as(m).find("mixtral has moe.score_before_top_k = false"), std::string::npos);
  // What counts in training only is no part of a folder.
  m = config_of("mixtral");
  m.moe.capacity = nn::ExpertCapacity::drop;
  m.moe.z_loss = 0.1;
  EXPECT_EQ(written_as(m), "MixtralForCausalLM");
}

TEST(HfMoeExport, PresetsAreOfTheirFamilies) {
  EXPECT_EQ(written_as(model::preset("llama-3.2-1b").model), "LlamaForCausalLM");
  EXPECT_EQ(written_as(model::preset("mixtral-8x7b").model), "MixtralForCausalLM");
  EXPECT_EQ(written_as(model::preset("olmoe-1b-7b").model), "OlmoeForCausalLM");
  EXPECT_EQ(written_as(model::preset("qwen3-30b-a3b").model), "Qwen3MoeForCausalLM");
}

TEST(HfMoeExport, AModelOfNoFamilyIsRefused) {
  model::ModelConfig m = config_of("mixtral");
  m.moe.score = ops::RouterScore::sigmoid;
  EXPECT_EQ(written_as(m),
            "[export-hf] the checkpoint's model is of no family that can be written: gpt2 has no [moe], llama has no "
            "[moe], mixtral has moe.score = softmax, olmoe has moe.score = softmax, qwen2_moe has moe.score = softmax, "
            "qwen3_moe has moe.score = softmax");
  const struct {
    const char* name;
    void (*change)(model::ModelConfig&);
    const char* text;
  } cases[] = {
      {"mixtral", [](auto& c) { c.moe.scale = 2; }, "mixtral has moe.scale = 1"},
      {"mixtral", [](auto& c) { c.moe.num_groups = 2; }, "mixtral has moe.num_groups = 1"},
      {"mixtral", [](auto& c) { c.moe.router_skew = 0.5; }, "mixtral has moe.router_skew = 0"},
      {"mixtral", [](auto& c) { c.moe.pattern = "md"; }, "mixtral has moe.pattern = m"},
      {"mixtral", [](auto& c) { c.biases = nn::Biases::qkv; }, "mixtral has model.bias = none"},
      {"mixtral", [](auto& c) { c.activation = nn::Activation::gelu; }, "mixtral has model.activation = swiglu"},
      {"mixtral", [](auto& c) { c.moe.shared_ffn_hidden_size = 4; }, "mixtral has moe.shared_ffn_hidden_size = 0"},
      {"olmoe", [](auto& c) { c.head_dim = 6; }, "olmoe has model.head_dim = hidden_size / num_heads"},
      {"qwen2_moe", [](auto& c) { c.moe.shared_gate = false; }, "qwen2_moe has moe.shared_gate = true"},
      {"qwen2_moe", [](auto& c) { c.biases = nn::Biases::all; }, "qwen2_moe has model.bias = qkv or none"},
      {"qwen3_moe", [](auto& c) { c.biases = nn::Biases::all; }, "qwen3_moe has model.bias = qkv or none, as dense"}};
  for (const auto& [name, change, text] : cases) {
    model::ModelConfig changed = config_of(name);
    change(changed);
    EXPECT_NE(written_as(changed).find(text), std::string::npos) << text << '\n' << written_as(changed);
  }
}

TEST(HfMoeExport, CountsOfTheLastStepStayBehind) {
  model::ModelConfig config = padded(config_of("mixtral"));
  config.moe.aux_loss = 0.1;
  config.moe.aux_scope = nn::AuxScope::global;
  RandomModel model(config);
  ASSERT_NE(model.params.find("layers.0.moe.router.shares"), nullptr);
  const TempDir dir;
  export_hf(*kFs, dir.path(), values_of(config, model.params), {.end_of_document = 7});
  EXPECT_EQ(tensors_of(dir.path()).size(), tensors_of(HfCase("mixtral").folder).size());
  EXPECT_EQ(read_hf_config(*kFs, dir.path()).config.moe.aux_loss, 0.1);
}

TEST_F(SpoiltMoe, BiasesOfQKAndVAloneAreWrittenWithZerosForO) {
  const model::ModelConfig all = padded(config_of("olmoe"));
  model::ModelConfig config = all;
  config.biases = nn::Biases::qkv;
  const RandomModel model(config);
  kFs->make_dir(folder());
  export_hf(*kFs, folder(), values_of(config, model.params), {.end_of_document = 7});
  EXPECT_EQ(read().biases, nn::Biases::all) << "of attention, as no layer is dense";
  const std::string zeros = tensors_of(folder()).at("model.layers.1.self_attn.o_proj.bias");
  EXPECT_EQ(zeros.substr(zeros.size() - 96), std::string(96, '\0'));
}

}  // namespace
}  // namespace megalith::convert
