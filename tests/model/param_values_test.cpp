#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"
#include "megalith/model/chunk.h"

// How each parameter of a model with experts begins, and whether it decays: literal values. Grids agree about wrong
// ones, too.
namespace megalith::model {
namespace {

/// "name: ones", "name: zeros" or "name: standard deviation", then "decays" where it does.
std::vector<std::string> beginnings(const ModelConfig& model) {
  std::vector<std::string> lines;
  for (const ParamSpec& spec : declare_whole_model(model)) {
    const std::string init = spec.init == Init::ones ? "ones" : spec.init == Init::zeros ? "zeros" : str(spec.init_std);
    lines.push_back(str(spec.slice.name, ": ", init, spec.decay == Decay::yes ? " decays" : ""));
  }
  return lines;
}

/// 8 layers, of which the first four are d, m, d, m: weights before a residual sum begin with 0.02 / sqrt(16).
ModelConfig model_with_experts() {
  ModelConfig m = llama_defaults();
  m.num_layers = 8, m.hidden_size = 8, m.num_heads = 2, m.ffn_hidden_size = 12, m.seq_len = 4, m.vocab_size = 16;
  m.moe.num_experts = 4, m.moe.ffn_hidden_size = 6, m.moe.pattern = "dm";
  m.moe.shared_ffn_hidden_size = 6, m.moe.shared_gate = true;
  m.moe.aux_loss = 0.1, m.moe.aux_scope = nn::AuxScope::global, m.moe.expert_bias_rate = 0.01;
  m.qk_norm = nn::QkNorm::head;
  return m;
}

TEST(ParamValues, OfLlamasPartsWithExperts) {
  const std::vector<std::string> got = beginnings(model_with_experts());
  EXPECT_THAT(
      std::vector(got.begin(), got.begin() + 25),
      ::testing::ElementsAre(
          "embedding.token.weight: 0.02 decays", "layers.0.norm1.weight: ones",
          "layers.0.attention.qkv.weight: 0.02 decays", "layers.0.attention.q_norm.weight: ones",
          "layers.0.attention.k_norm.weight: ones", "layers.0.attention.out.weight: 0.005 decays",
          "layers.0.norm2.weight: ones", "layers.0.mlp.up.weight: 0.02 decays",
          "layers.0.mlp.down.weight: 0.005 decays", "layers.1.norm1.weight: ones",
          "layers.1.attention.qkv.weight: 0.02 decays", "layers.1.attention.q_norm.weight: ones",
          "layers.1.attention.k_norm.weight: ones", "layers.1.attention.out.weight: 0.005 decays",
          "layers.1.norm2.weight: ones", "layers.1.moe.router.weight: 0.02 decays", "layers.1.moe.router.bias: zeros",
          "layers.1.moe.router.shares: zeros", "layers.1.moe.experts.up.weight: 0.02 decays",
          "layers.1.moe.experts.down.weight: 0.005 decays", "layers.1.moe.shared.up.weight: 0.02 decays",
          "layers.1.moe.shared.down.weight: 0.005 decays", "layers.1.moe.shared.gate.weight: 0.02 decays",
          "layers.2.norm1.weight: ones", "layers.2.attention.qkv.weight: 0.02 decays"));
  EXPECT_EQ(got[got.size() - 2], "final_norm.weight: ones");
  EXPECT_EQ(got.back(), "head.weight: 0.02 decays");
}

TEST(ParamValues, OfGpt2sPartsWithExperts) {
  ModelConfig model;
  model.num_layers = 2, model.hidden_size = 8, model.num_heads = 2, model.ffn_hidden_size = 12;
  model.seq_len = 4, model.vocab_size = 16;
  model.moe.num_experts = 4, model.moe.ffn_hidden_size = 6, model.moe.shared_ffn_hidden_size = 6;
  const std::vector<std::string> got = beginnings(model);
  EXPECT_THAT(
      std::vector(got.begin(), got.begin() + 15),
      ::testing::ElementsAre(
          "embedding.token.weight: 0.02 decays", "embedding.position.weight: 0.02 decays",
          "layers.0.norm1.weight: ones", "layers.0.norm1.bias: zeros", "layers.0.attention.qkv.weight: 0.02 decays",
          "layers.0.attention.qkv.bias: zeros", "layers.0.attention.out.weight: 0.01 decays",
          "layers.0.attention.out.bias: zeros", "layers.0.norm2.weight: ones", "layers.0.norm2.bias: zeros",
          "layers.0.moe.router.weight: 0.02 decays", "layers.0.moe.experts.up.weight: 0.02 decays",
          "layers.0.moe.experts.down.weight: 0.01 decays", "layers.0.moe.shared.up.weight: 0.02 decays",
          "layers.0.moe.shared.down.weight: 0.01 decays"));
  EXPECT_EQ(got[got.size() - 2], "final_norm.weight: ones");
  EXPECT_EQ(got.back(), "final_norm.bias: zeros");
}

}  // namespace
}  // namespace megalith::model
