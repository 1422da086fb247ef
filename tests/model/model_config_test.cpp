#include "megalith/model/model_config.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/gpt_stage.h"

#include "tests/test_data.h"

namespace megalith::model {
namespace {

nlohmann::json vectors() {
  std::ifstream file(MEGALITH_TEST_DATA "/model/model.json");
  return nlohmann::json::parse(file);
}

ModelConfig of_preset(const Preset& p) {
  ModelConfig m{.num_layers = p.num_layers,
                .hidden_size = p.hidden_size,
                .num_heads = p.num_heads,
                .ffn_hidden_size = 4 * p.hidden_size,
                .seq_len = p.seq_len,
                .vocab_size = p.vocab_size,
                .padded_vocab_size = p.padded_vocab_size};
  if (m.padded_vocab_size == 0) m.padded_vocab_size = padded_vocab_size(m.vocab_size, 1);
  return m;
}

TEST(ModelConfig, VocabularyIsPaddedTo128TimesTp) {
  const nlohmann::json all = vectors();
  for (const nlohmann::json& row : all.at("vocab_padding")) {
    EXPECT_EQ(padded_vocab_size(row.at("vocab"), row.at("tp")), row.at("padded").get<Index>()) << row;
  }
}

TEST(ModelConfig, EveryGptShapeOfThePapersTablesHasAPresetWithItsExactCount) {
  int found = 0;
  const nlohmann::json all = vectors();
  for (const nlohmann::json& row : all.at("configs")) {
    if (row.at("family") != "gpt2") continue;
    bool any = false;
    for (const Preset& p : presets()) {
      const Index padded = p.padded_vocab_size;
      if (p.num_layers != row.at("layers") || p.hidden_size != row.at("hidden") || p.num_heads != row.at("heads"))
        continue;
      if (padded != row.at("vocab")) continue;
      any = true;
      EXPECT_EQ(count_parameters(of_preset(p)), row.at("params_exact").get<Index>()) << p.name;
    }
    EXPECT_TRUE(any) << row;
    ++found;
  }
  EXPECT_GE(found, 7);
}

TEST(ModelConfig, Gpt2OwnSizes) {
  EXPECT_EQ(count_parameters(of_preset(preset("gpt2-355m"))), 354871296);  // vocabulary padded to 50,304
  EXPECT_EQ(count_parameters(of_preset(preset("gpt2-124m"))),
            50304 * 768 + 1024 * 768 + 12 * (12 * 768 * 768 + 13 * 768) + 2 * 768);
  EXPECT_EQ(parameters_text(of_preset(preset("gpt2-124m"))), "124,439,808 parameters (+ 36,096 of padding)");
  ModelConfig model{.num_layers = 1, .hidden_size = 4, .ffn_hidden_size = 16, .seq_len = 2, .vocab_size = 128};
  model.padded_vocab_size = 128;
  EXPECT_EQ(parameters_text(model), "772 parameters");
  model.hidden_size = 8;
  model.padded_vocab_size = 256;
  EXPECT_EQ(parameters_text(model), "1,656 parameters (+ 1,024 of padding)");
}

/// The parameters of all ranks, replicas once, are the formula's: for every tp and pp.
TEST(ModelConfig, TheRanksHoldTogetherWhatTheFormulaSays) {
  const ModelConfig model{.num_layers = 4,
                          .hidden_size = 16,
                          .num_heads = 4,
                          .ffn_hidden_size = 64,
                          .seq_len = 8,
                          .vocab_size = 100,
                          .padded_vocab_size = 1024};
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2, 4}) {
      Index sum = 0;
      for (int rank = 0; rank < tp * pp; ++rank) {
        const auto world = comm::dry_world(rank, tp * pp);
        const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({.world_size = tp * pp, .tp = tp, .pp = pp}));
        const GptStage stage({.model = model}, mesh);
        for (const Param& param : stage.params().dense().params()) {
          if (grid::owns_in_copy(param.spec.placement, mesh.place(grid::GridKind::dense)))
            sum += param.spec.held.numel();
        }
      }
      EXPECT_EQ(sum, count_parameters(model)) << "tp " << tp << " pp " << pp;
    }
  }
}

TEST(ModelConfig, ResidualWeightsStartSmaller) {
  const nlohmann::json stds = vectors().at("residual_init_std");
  for (const auto& [layers, want] : stds.items()) {
    const Index count = std::stoll(layers);
    const ModelConfig model{.num_layers = count,
                            .hidden_size = 4,
                            .num_heads = 1,
                            .ffn_hidden_size = 16,
                            .seq_len = 2,
                            .vocab_size = 8,
                            .padded_vocab_size = 8};
    const auto world = comm::dry_world(0, 1);
    const GptStage stage({.model = model}, comm::make_mesh(*world, grid::resolve({})));
    int checked = 0;
    for (const Param& param : stage.params().dense().params()) {
      const bool before_residual =
          param.name().ends_with("attention.out.weight") || param.name().ends_with("mlp.down.weight");
      if (before_residual) {
        EXPECT_NEAR(param.spec.init_std, want.get<double>(), 1e-12) << param.name();
        ++checked;
      } else if (param.spec.init == Init::normal) {
        EXPECT_EQ(param.spec.init_std, 0.02) << param.name();
      }
      EXPECT_EQ(param.spec.decay == Decay::yes, param.spec.held.rank() == 2) << param.name();
    }
    EXPECT_EQ(checked, 2 * count);
  }
}

TEST(ModelConfig, FlopsAreCountedAsForThePeers) {
  const ModelConfig m = of_preset(preset("gpt2-124m"));
  EXPECT_DOUBLE_EQ(flops_per_token(m), 6.0 * (12.0 * 12 * 768 * 768 + 50304.0 * 768) + 12.0 * 12 * 768 * 1024);
}

}  // namespace
}  // namespace megalith::model
