#include "megalith/model/model_config.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/stage.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"

namespace megalith::model {
namespace {

nlohmann::json vectors() {
  std::ifstream file(MEGALITH_TEST_DATA "/model/model.json");
  return nlohmann::json::parse(file);
}

ModelConfig of_preset(const Preset& p) {
  ModelConfig m = p.model;
  if (m.padded_vocab_size == 0) m.padded_vocab_size = padded_vocab_size(m.vocab_size, 1);
  return m;
}

/// V H + S H + L (4 H^2 + 2 H F + 9 H + F) + 2 H: with F = 4 H this is V H + S H + L (12 H^2 + 13 H) + 2 H. The tied
/// table counts once.
Index gpt2_parameters(const ModelConfig& m) {
  const Index h = m.hidden_size, f = m.ffn_hidden_size;
  return m.padded_vocab_size * h + m.seq_len * h + m.num_layers * (4 * h * h + 2 * h * f + 9 * h + f) + 2 * h;
}

/// 6 per weight of every GEMM, the output layer with its padding included, and 12 L H S for attention.
double gpt2_flops(const ModelConfig& m) {
  const auto l = static_cast<double>(m.num_layers), h = static_cast<double>(m.hidden_size),
             f = static_cast<double>(m.ffn_hidden_size);
  const double weights = l * (4 * h * h + 2 * h * f) + static_cast<double>(m.padded_vocab_size) * h;
  return 6 * weights + 12 * l * h * static_cast<double>(m.seq_len);
}

/// Presets of GPT-2, and a model whose MLP is not four times as wide.
std::vector<ModelConfig> shapes() {
  std::vector<ModelConfig> all = {{.num_layers = 3,
                                   .hidden_size = 20,
                                   .num_heads = 4,
                                   .ffn_hidden_size = 28,
                                   .seq_len = 9,
                                   .vocab_size = 37,
                                   .padded_vocab_size = 40}};
  for (const Preset& p : presets()) {
    if (p.model.family == "gpt2") all.push_back(of_preset(p));
  }
  return all;
}

TEST(ModelSpec, ParametersAndFlopsAreThoseOfTheClosedForms) {
  for (const ModelConfig& m : shapes()) {
    EXPECT_EQ(count_parameters(m), gpt2_parameters(m)) << m.num_layers << " x " << m.hidden_size;
    EXPECT_EQ(flops_per_token(m), gpt2_flops(m)) << m.num_layers << " x " << m.hidden_size;
  }
}

TEST(ModelSpec, ListsSublayersInTheOrderOfAForwardPass) {
  const ModelConfig m = shapes().front();
  const ModelSpec spec = model_spec(m);
  std::vector<std::string> names;
  for (const nn::SublayerSpec& sublayer : spec.sublayers) names.push_back(sublayer.norm.name + " " + sublayer.name);
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.norm1 layers.0.attention", "layers.0.norm2 layers.0.mlp",
                                             "layers.1.norm1 layers.1.attention", "layers.1.norm2 layers.1.mlp",
                                             "layers.2.norm1 layers.2.attention", "layers.2.norm2 layers.2.mlp"}));
  EXPECT_EQ(spec.of_layers(1, 3).size(), 4u);
  EXPECT_EQ(spec.of_layers(1, 3).front().name, "layers.1.attention");
  EXPECT_EQ(spec.of_layers(2, 2).size(), 0u);
  const nn::ForwardFlops attention = nn::forward_flops(spec.sublayers[0], spec.stream, spec.seq_len),
                         mlp = nn::forward_flops(spec.sublayers[1], spec.stream, spec.seq_len);
  EXPECT_EQ(attention.first_gemms, 2 * 20 * 60);
  EXPECT_EQ(attention.attention, 4 * 9 * 20);
  EXPECT_EQ(attention.last_gemm, 2 * 20 * 20);
  EXPECT_EQ(mlp.first_gemms, 2 * 20 * 28);
  EXPECT_EQ(mlp.total(), 4 * 20 * 28);
  EXPECT_EQ(forward_flops_per_token(spec), 3 * (attention.total() + mlp.total()) + 2 * 40 * 20);
}

TEST(ModelSpec, CountsWhatRecomputationRepeats) {
  using nn::RecomputeModule;
  const ModelSpec spec = model_spec(shapes().front());
  const nn::ForwardFlops attention = nn::forward_flops(spec.sublayers[0], spec.stream, spec.seq_len),
                         mlp = nn::forward_flops(spec.sublayers[1], spec.stream, spec.seq_len);
  const double layer = attention.total() + mlp.total();
  const auto full = [&](nn::RecomputeMethod method, Index layers) {
    return repeated_flops_per_token(spec, {.mode = nn::RecomputeMode::full, .method = method, .layers = layers});
  };
  EXPECT_EQ(full(nn::RecomputeMethod::uniform, 1), 3 * (layer - mlp.last_gemm));
  EXPECT_EQ(full(nn::RecomputeMethod::uniform, 2), 3 * layer - 2 * mlp.last_gemm) << "groups of 2 and of 1";
  EXPECT_EQ(full(nn::RecomputeMethod::uniform, 3), 3 * layer - mlp.last_gemm);
  EXPECT_EQ(full(nn::RecomputeMethod::block, 2), 2 * (layer - mlp.last_gemm));
  const auto selective = [&](RecomputeModule module) {
    nn::RecomputeConfig config{.mode = nn::RecomputeMode::selective};
    config.add(module);
    return repeated_flops_per_token(spec, config);
  };
  EXPECT_EQ(selective(RecomputeModule::gelu), 0);
  EXPECT_EQ(selective(RecomputeModule::norms), 0);
  EXPECT_EQ(selective(RecomputeModule::attention), 3 * attention.attention);
  EXPECT_EQ(selective(RecomputeModule::mlp), 3 * mlp.first_gemms);
  EXPECT_EQ(repeated_flops_per_token(spec, {}), 0);
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
      const ModelConfig& m = p.model;
      if (m.num_layers != row.at("layers") || m.hidden_size != row.at("hidden") || m.num_heads != row.at("heads"))
        continue;
      if (m.family != "gpt2" || m.padded_vocab_size != row.at("vocab")) continue;
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
  ModelConfig model{
      .num_layers = 1, .hidden_size = 4, .num_heads = 2, .ffn_hidden_size = 16, .seq_len = 2, .vocab_size = 128};
  model.padded_vocab_size = 128;
  EXPECT_EQ(parameters_text(model), "772 parameters");
  model.hidden_size = 8;
  model.padded_vocab_size = 256;
  EXPECT_EQ(parameters_text(model), "1,656 parameters (+ 1,024 of padding)");
}

TEST(ModelConfig, PresetsOfLlamasBlocksHaveThePublishedNumbersOfParameters) {
  const std::pair<const char*, Index> cases[] = {{"llama-3.2-1b", 1'235'814'400},
                                                 {"olmoe-1b-7b", 6'919'161'856},
                                                 {"mixtral-8x7b", 46'702'792'704},
                                                 {"qwen3-30b-a3b", 30'532'122'624}};
  for (const auto& [name, published] : cases) EXPECT_EQ(count_parameters(of_preset(preset(name))), published) << name;
  EXPECT_EQ(parameters_text(of_preset(preset("mixtral-8x7b"))),
            "46,702,792,704 parameters, 12,879,925,248 of them active");
  const std::string error = error_of<ConfigError>([] { preset("mixtral-8x7"); });
  EXPECT_NE(error.find("did you mean mixtral-8x7b?"), std::string::npos) << error;
}

/// V H + 512 H + 2 H (types) + L (12 H^2 + 13 H) + 2 H (norm of the end, or of the embeddings) + H^2 + H (pooler) + H^2
/// + 3 H + V (head of masked tokens) + 2 H + 2 (order).
Index bert_parameters(const ModelConfig& m, Index vocab) {
  const Index h = m.hidden_size;
  return vocab * h + 512 * h + 2 * h + m.num_layers * (12 * h * h + 13 * h) + 2 * h + h * h + h + h * h + 3 * h +
         vocab + 2 * h + 2;
}

/// The paper's presets of BERT, the vocabulary of each count, and the count; bert-base is as BertForPreTraining has it.
struct BertCount {
  const char* preset;
  Index vocab, parameters;
};
constexpr BertCount kBertCounts[] = {{"bert-336m", 30'522, 336'226'108},   {"bert-752m", 30'720, 751'685'122},
                                     {"bert-1.3b", 30'522, 1'280'595'772}, {"bert-3.9b", 30'522, 3'869'081'404},
                                     {"bert-base", 30'522, 110'106'428},   {"bert-large", 30'522, 336'226'108}};

TEST(ModelConfig, PresetsOfBertHaveThePublishedNumbersOfParameters) {
  for (const auto& [name, vocab, published] : kBertCounts) {
    ModelConfig m = preset(name).model;
    EXPECT_EQ(bert_parameters(m, vocab), published) << name;
    for (const int tp : {1, 2, 8}) {
      m.padded_vocab_size = padded_vocab_size(vocab, tp);
      const Index counted = count_parameters(m) - (m.padded_vocab_size - vocab) * (m.hidden_size + 1);
      EXPECT_EQ(counted, published) << name << ", tp " << tp;
      EXPECT_EQ(count_parameters(m) - count_padding(m), bert_parameters(m, 30'522)) << name << ", tp " << tp;
    }
  }
  EXPECT_TRUE(preset("bert-base").model.is_post_norm());
  EXPECT_FALSE(preset("bert-336m").model.is_post_norm());
}

/// Elements of the parameters that the ranks of a grid own in the first copy of the model.
Index owned_elements(const ModelConfig& m, const grid::ParallelSizes& sizes) {
  Index owned = 0;
  for (int rank = 0; rank < sizes.world_size; ++rank) {
    const std::unique_ptr<comm::World> world = comm::dry_world(rank, sizes.world_size);
    const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve(sizes));
    const nn::LayerGroups groups{{mesh.tp, nn::SequenceParallel::off, 1}};
    const std::vector<ChunkRange> ranges = chunk_ranges({.model = m}, mesh);
    for (const ParamSpec& param : declare_model(model_spec(m), ranges, groups)) {
      const grid::PerAxis at = mesh.coordinates(param.placement.grid);
      if (grid::is_in_first_copy(at) && grid::owns_in_copy(param.placement, at)) owned += param.slice.local.numel();
    }
  }
  return owned;
}

// Each parameter once. What the ranks hold of the vocabulary's padding is no parameter.
TEST(ModelConfig, RanksOfAnyGridOwnEachParameterOfBertOnce) {
  for (const auto& [name, vocab, published] : kBertCounts) {
    ModelConfig m = preset(name).model;
    m.vocab_size = vocab;
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 4}) {
        if (m.num_heads % tp != 0) continue;
        m.padded_vocab_size = padded_vocab_size(vocab, tp);
        EXPECT_EQ(owned_elements(m, {.world_size = tp * pp, .tp = tp, .pp = pp}), published)
            << name << ", tp " << tp << ", pp " << pp;
      }
    }
    EXPECT_EQ(owned_elements(m, {.world_size = 16, .tp = 4, .pp = 2}), published) << name << ", dp 2";
  }
}

TEST(ModelSpec, FlopsOfBertCountTheRowsThatItsHeadsRead) {
  ModelConfig m = of_preset(preset("bert-336m"));
  const ModelSpec spec = model_spec(m);
  double layers = 0;
  for (const nn::SublayerSpec& sublayer : spec.sublayers)
    layers += nn::forward_flops(sublayer, spec.stream, spec.seq_len).total();
  const double h = 1024, masked = 76 * 2 * h * (h + 30592), order = 2 * h * (h + 2);  // floor(0.15 * 509) = 76
  EXPECT_EQ(spec.masked_tokens, 76);
  EXPECT_EQ(forward_flops_per_token(spec), (masked + order) / 512 + layers);
}

TEST(ModelConfig, HeadsAndSlicesThatDoNotFitAreRefusedWithTheNearestThatDo) {
  ModelConfig fits = llama_defaults();
  fits.num_layers = 2, fits.hidden_size = 16, fits.num_heads = 4, fits.ffn_hidden_size = 48, fits.seq_len = 8;
  fits.vocab_size = fits.padded_vocab_size = 256;
  const auto lines = [&](int tp, const auto& change) {
    ModelConfig m = fits;
    change(m);
    Problems problems;
    check(m, tp, problems);
    return problems.lines();
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines(4, [](ModelConfig&) {}), Lines{});
  EXPECT_EQ(lines(1, [](ModelConfig& m) { m.num_kv_heads = 3; }),
            Lines{"model.num_kv_heads = 3: must divide model.num_heads = 4; the nearest is 4"});
  EXPECT_EQ(lines(2, [](ModelConfig& m) { m.num_kv_heads = 1; }),
            Lines{"parallel.tp = 2: must divide model.num_kv_heads = 1; the nearest is 1"});
  EXPECT_EQ(lines(1, [](ModelConfig& m) { m.head_dim = 3; }),
            Lines{"model.head_dim = 3: must be even with model.position = rope, which turns pairs; the nearest is 4"});
  EXPECT_EQ(
      lines(1, [](ModelConfig& m) { m.num_heads = 3; }),
      Lines{"model.num_heads = 3: must divide model.hidden_size = 16, or model.head_dim must be given; the nearest "
            "is 4"});
  EXPECT_EQ(lines(1, [](ModelConfig& m) { m.hidden_size = 20; }),
            Lines{"model.num_heads = 4: makes heads model.hidden_size / 4 = 5 wide, which must be even with "
                  "model.position = rope, which turns pairs; give model.head_dim, or another number of heads; the "
                  "nearest is 5"});
  EXPECT_EQ(lines(4, [](ModelConfig& m) { m.ffn_hidden_size = 6; }),
            Lines{"parallel.tp = 4: must divide model.ffn_hidden_size = 6; the nearest is 2"});
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
        const Stage stage({.model = model}, mesh);
        for (const Param& param : stage.params().dense().params()) {
          if (grid::owns_in_copy(param.spec.placement, mesh.coordinates(grid::GridKind::dense)))
            sum += param.spec.held.numel();
        }
      }
      EXPECT_EQ(sum, count_parameters(model)) << "tp " << tp << " pp " << pp;
    }
  }
}

/// The standard deviations with which the weights of an attention and an MLP begin: qkv, out, up, down.
std::vector<double> deviations(ModelConfig model) {
  model.num_layers = 8, model.hidden_size = 4, model.num_heads = 1, model.ffn_hidden_size = 16, model.seq_len = 2;
  model.vocab_size = model.padded_vocab_size = 8;
  std::vector<double> all;
  for (const ParamSpec& spec : declare_whole_model(model)) {
    if (spec.slice.name.starts_with("layers.7.") && spec.init == Init::normal) all.push_back(spec.init_std);
  }
  return all;
}

// 8 layers: sqrt(2 L) = 4.
TEST(ModelConfig, DeviationsOfFirstValuesAreThoseOfTheKeys) {
  EXPECT_EQ(deviations({}), (std::vector<double>{0.02, 0.005, 0.02, 0.005}));
  EXPECT_EQ(deviations({.init_std = 0.5}), (std::vector<double>{0.5, 0.125, 0.5, 0.125}));
  EXPECT_EQ(deviations({.init_std = 0.5, .init_depth_scaling = false}), (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
  for (const char* family : {"gpt2", "llama", "bert"}) {
    EXPECT_EQ(family_defaults(family).init_std, 0.02) << family;
    EXPECT_TRUE(family_defaults(family).init_depth_scaling) << family;
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
    const Stage stage({.model = model}, comm::make_mesh(*world, grid::resolve({})));
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

TEST(ModelConfig, AStageDescribesItsOwnLayersAsTheModelDoes) {
  ModelConfig m = of_preset(preset("gpt2-124m"));
  m.moe.num_experts = 4;
  m.moe.ffn_hidden_size = 8;
  m.moe.pattern = "dmm";
  const ModelSpec whole = model_spec(m);
  const std::vector<grid::LayerRange> layers = {{1, 3}, {7, 7}, {8, 12}};
  std::vector<nn::SublayerSpec> want;
  for (const grid::LayerRange& range : layers) {
    const auto some = whole.of_layers(range.begin, range.end);
    want.insert(want.end(), some.begin(), some.end());
  }
  const ModelSpec stage = model_spec(m, layers);
  ASSERT_EQ(stage.sublayers.size(), want.size());
  ASSERT_EQ(want.size(), 2u * 6);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(stage.sublayers[i].name, want[i].name);
    EXPECT_EQ(stage.sublayers[i].layer, want[i].layer);
    EXPECT_EQ(stage.sublayers[i].dropout_site, want[i].dropout_site);
    const auto* const experts = std::get_if<nn::MoeSpec>(&stage.sublayers[i].body);
    const auto* const wanted = std::get_if<nn::MoeSpec>(&want[i].body);
    ASSERT_EQ(experts == nullptr, wanted == nullptr);
    if (experts != nullptr) {
      EXPECT_EQ(experts->moe_layer, wanted->moe_layer) << want[i].name;
    }
  }
  EXPECT_EQ(stage.of_layers(8, 10).size(), 4u);
  EXPECT_EQ(stage.of_layers(8, 10).front().layer, 8);
}

}  // namespace
}  // namespace megalith::model
