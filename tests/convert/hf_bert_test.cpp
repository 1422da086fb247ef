#include <cmath>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/ops/init.h"

#include "tests/convert/hf_folders.h"

// BERT and Megatron-BERT to and from Hugging Face folders: keys, names, heads that a folder lacks, refusals.
// hf_bert_numbers_test.cpp compares what the models compute.
namespace megalith::convert {
namespace {

constexpr std::uint64_t kSeed = 1234;

model::ModelConfig bert_config(const char* name) { return read_hf_config(*kFs, HfCase(name).folder).config; }

TEST(HfBert, ReadsBothPlacementsAndBothFormsOfGelu) {
  const model::ModelConfig post = bert_config("bert"), pre = bert_config("megatron_bert_tanh");
  EXPECT_TRUE(post.is_bert());
  EXPECT_TRUE(post.is_post_norm());
  EXPECT_FALSE(pre.is_post_norm());
  EXPECT_EQ(post.activation, nn::Activation::gelu_erf);
  EXPECT_EQ(pre.activation, nn::Activation::gelu);
  EXPECT_EQ(post.norm_eps, 1e-12) << "the library's own";
  EXPECT_EQ(pre.norm_eps, 0.1);
  EXPECT_EQ(post.seq_len, 16);
  EXPECT_EQ(post.bert.seq_len, 16);
  EXPECT_EQ(post.token_types, 2);
  EXPECT_EQ(post.ffn_hidden_size, 20);
  EXPECT_EQ(post.dropout, 0.1);
  EXPECT_EQ(post.embedding_dropout, 0.1);
  EXPECT_EQ(post.attention_dropout, 0.1);
  EXPECT_EQ(post.bert.order, data::SentenceOrder::sop);
}

/// Written and read again, a model has the tensors of its folder and the same bytes.
void expect_bert_goes_back(const char* name) {
  SCOPED_TRACE(name);
  const HfCase one(name);
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  const RandomModel model = imported(one.folder);
  kFs->make_dir(dir / "a");
  kFs->make_dir(dir / "b");
  export_hf(*kFs, dir / "a", values_of(padded(hf.config), model.params), {.end_of_document = 7, .padding = 3});
  EXPECT_EQ(tensors_of(dir / "a"), tensors_of(one.folder));
  const json written = json::parse(read_all(dir / "a" / "config.json")),
             theirs = json::parse(read_all(one.folder / "config.json"));
  for (const char* key : {"model_type", "architectures", "hidden_act", "type_vocab_size", "layer_norm_eps"})
    EXPECT_EQ(written.at(key), theirs.at(key)) << key;
  EXPECT_EQ(written.at("pad_token_id"), 3);
  const RandomModel again = imported(dir / "a");
  EXPECT_EQ(again.all_values(), model.all_values());
  export_hf(*kFs, dir / "b", values_of(padded(read_hf_config(*kFs, dir / "a").config), again.params),
            {.end_of_document = 7, .padding = 3});
  for (const char* file : {"config.json", "model.safetensors"})
    EXPECT_EQ(read_all(dir / "b" / file), read_all(dir / "a" / file)) << file;
}

TEST(HfBert, GoesBackAsItCame) {
  for (const char* name : {"bert", "megatron_bert", "megatron_bert_tanh"}) expect_bert_goes_back(name);
}

class SpoiltBert : public SpoiltFolder {
 protected:
  std::string warning() const {
    const HfModel hf = read_hf_config(*kFs, folder());
    return HfReader(*kFs, folder(), hf, kSeed).warning();
  }
};

TEST_F(SpoiltBert, OlderNamesAndCopiesOfTiedTensorsAreRead) {
  copy("bert_tanh");
  const RandomModel older = imported(folder());
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    const auto rename = [&](const std::string& from, const std::string& to) {
      values[to] = values.at(from), shapes[to] = shapes.at(from);
      values.erase(from), shapes.erase(from);
    };
    const Tensors before = values;
    for (const auto& [name, value] : before) {
      const std::size_t dot = name.rfind('.');
      if (name.ends_with(".gamma")) rename(name, name.substr(0, dot) + ".weight");
      if (name.ends_with(".beta")) rename(name, name.substr(0, dot) + ".bias");
    }
    for (const char* copy : {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"})
      ASSERT_EQ(values.erase(copy) + shapes.erase(copy), 2U);
  });
  EXPECT_EQ(imported(folder()).all_values(), older.all_values());
}

TEST_F(SpoiltBert, ABiasUnderTheDecodersNameAloneIsRead) {
  copy("bert");
  const RandomModel usual = imported(folder());
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    const std::string from = "cls.predictions.bias", to = "cls.predictions.decoder.bias";
    values[to] = values.at(from), shapes[to] = shapes.at(from);
    values.erase(from), shapes.erase(from);
  });
  EXPECT_EQ(imported(folder()).all_values(), usual.all_values());
  EXPECT_EQ(warning(), "");
}

TEST_F(SpoiltBert, HeadsThatAFolderLacksAreMadeFromTheSeedAndNamed) {
  copy("bert_model");
  EXPECT_EQ(warning(), folder().string() +
                           " has no head for masked tokens (cls.predictions), head for the order "
                           "(cls.seq_relationship): made from seed 1234");
  RandomModel model = imported(folder());
  const auto made = [&](const char* name, std::uint64_t seed) {
    const Tensor held = model.params.at(name).value;
    std::vector<float> values(static_cast<std::size_t>(held.numel()));
    Exec host;
    ops::initialise(host, {TensorSlice::whole(name, held.shape()), Init::normal, 0.02},
                    Tensor(values.data(), held.shape(), DType::f32), seed);
    return values;
  };
  for (const char* name : {"head.mlm.dense.weight", "head.order.weight"}) {
    const std::span<const float> values = model.params.at(name).value.span<float>();
    EXPECT_TRUE(std::ranges::equal(values, made(name, kSeed))) << name;
    EXPECT_FALSE(std::ranges::equal(values, made(name, 1))) << name;
  }
  EXPECT_EQ(model.at("head.mlm.norm.weight", 3), 1);
  EXPECT_EQ(model.at("head.mlm.bias", 3), 0);
  EXPECT_FALSE(
      std::ranges::equal(model.params.at("head.pooler.weight").value.span<float>(), made("head.pooler.weight", kSeed)))
      << "the folder has it";
  copy("bert_masked_lm");
  EXPECT_EQ(warning(), folder().string() +
                           " has no pooler (pooler.dense), head for the order (cls.seq_relationship): made from seed "
                           "1234");
  EXPECT_EQ(error(), "");
}

// Each rank takes its part of the values of one seed.
TEST_F(SpoiltBert, AMadeHeadIsTheSameInSlices) {
  copy("bert_model");
  const HfModel hf = read_hf_config(*kFs, folder());
  HfReader reader(*kFs, folder(), hf, kSeed);
  RandomModel model = imported(folder());
  const Shape whole = {16, 16};
  std::vector<float> part(4 * 16);
  reader.read({"head.mlm.dense.weight", whole, {8, 0}, {4, 16}}, Tensor(part.data(), {4, 16}, DType::f32));
  const auto all = model.params.at("head.mlm.dense.weight").value.span<float>();
  EXPECT_TRUE(std::ranges::equal(part, all.subspan(8 * 16, 4 * 16)));
}

TEST_F(SpoiltBert, AllProblemsOfAConfigAreNamedTogether) {
  copy("bert");
  edit("config.json", [](json& config) {
    config["position_embedding_type"] = "relative_key_query";
    config["is_decoder"] = true;
    config["hidden_act"] = "relu";
    config["num_attention_heads"] = 5;
    config["num_hidden_layers"] = 0;
    config["tie_word_embeddings"] = false;
  });
  const std::string file = (folder() / "config.json").string(), got = error();
  EXPECT_TRUE(got.starts_with("[" + file + "] 6 problems\n")) << got;
  for (const char* line :
       {"] num_hidden_layers = 0: must be a whole number from 1 to ",
        "] num_attention_heads = 5: must divide hidden_size = 16",
        "] hidden_act = \"relu\": must be gelu, gelu_python, gelu_new, gelu_pytorch_tanh or gelu_fast: others are not "
        "built yet",
        "] position_embedding_type = \"relative_key_query\": must be absolute: relative positions are not built",
        "] is_decoder = true: must be false: attention goes in both directions",
        "] tie_word_embeddings = false: must be true: the head for masked tokens has the token table"})
    EXPECT_NE(got.find("\n  [" + file + line), std::string::npos) << line << "\n" << got;
}

TEST_F(SpoiltBert, AllProblemsOfTensorsAreNamedTogether) {
  copy("bert");
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    const auto add = [&](const char* name, const Shape& shape) {
      values[name].resize(static_cast<std::size_t>(shape.numel()));
      shapes[name] = shape;
    };
    for (const char* gone : {"bert.encoder.layer.1.attention.self.key.bias", "cls.predictions.transform.dense.bias"})
      values.erase(gone), shapes.erase(gone);
    add("bert.encoder.layer.0.attention.self.distance_embedding.weight", {31, 4});
    add("classifier.weight", {3, 16});
    add("bert.embeddings.token_type_embeddings.weight", {3, 16});
    add("cls.predictions.decoder.weight", {37, 16});
    add("cls.predictions.decoder.bias", {37});
  });
  const std::string file = (folder() / "model.safetensors").string(), got = error();
  EXPECT_TRUE(got.starts_with("[" + file + "] 7 problems\n")) << got;
  for (const char* line :
       {"\"bert.encoder.layer.1.attention.self.key.bias\" is missing",
        "\"cls.predictions.transform.dense.bias\" is missing",  // the head has other tensors
        "\"bert.encoder.layer.0.attention.self.distance_embedding.weight\": the BERT of config.json has none",
        "\"classifier.weight\": the BERT of config.json has none",
        "\"bert.embeddings.token_type_embeddings.weight\" shape = [3, 16]: must be [2, 16] by config.json",
        "\"cls.predictions.decoder.weight\": must equal embeddings.word_embeddings.weight, to which it is tied",
        "\"cls.predictions.decoder.bias\": must equal cls.predictions.bias, to which it is tied"})
    EXPECT_NE(got.find(std::string("] tensor ") + line), std::string::npos) << line << "\n" << got;
}

// The library's own BERTs with relative positions have further tensors; those with one type have no second segment.
TEST_F(SpoiltBert, OneTokenTypeMeansNoOrder) {
  copy("bert_masked_lm");
  edit("config.json", [](json& config) { config["type_vocab_size"] = 1; });
  rewrite([](Tensors& values, std::map<std::string, Shape>& shapes) {
    const char* const name = "bert.embeddings.token_type_embeddings.weight";
    values.at(name).resize(16), shapes.at(name) = {1, 16};
  });
  EXPECT_EQ(error(), "");
  EXPECT_EQ(warning(), "");
  EXPECT_EQ(read_hf_config(*kFs, folder()).config.bert.order, data::SentenceOrder::none);
}

// A model that was trained on shorter samples than its table has positions keeps the table.
TEST(HfBert, MaxPositionEmbeddingsAreTheTableOfPositions) {
  const TempDir dir;
  const HfCase one("bert");
  const RandomModel model = imported(one.folder);
  model::ModelConfig shorter = padded(bert_config("bert"));
  shorter.seq_len = 12;
  shorter.num_positions = 16;
  kFs->make_dir(dir / "hf");
  export_hf(*kFs, dir / "hf", values_of(shorter, model.params), {.end_of_document = 7});
  EXPECT_EQ(json::parse(read_all(dir / "hf" / "config.json")).at("max_position_embeddings"), 16);
  const model::ModelConfig again = read_hf_config(*kFs, dir / "hf").config;
  EXPECT_EQ(again.seq_len, 16);
  EXPECT_EQ(again.positions(), 16);
  EXPECT_EQ(imported(dir / "hf").all_values(), model.all_values());
}

TEST(HfBert, TheClassOfAnExportFollowsTheHeads) {
  model::ModelConfig m = bert_config("bert");
  const auto name = [&] { return architecture_of(hf_family_for(m), m); };
  EXPECT_EQ(name(), "BertForPreTraining");
  m.bert.order = data::SentenceOrder::none;
  EXPECT_EQ(name(), "BertForMaskedLM");
  m.norm_placement = nn::NormPlacement::pre;
  EXPECT_EQ(name(), "MegatronBertForMaskedLM");
  m.bert.order = data::SentenceOrder::nsp;
  EXPECT_EQ(name(), "MegatronBertForPreTraining");
  m.norm = nn::NormKind::rms;
  const std::string refused = error_of<InputError>([&] { hf_family_for(m); });
  EXPECT_TRUE(refused.ends_with("can be written: bert has model.norm = layer, megatron-bert has model.norm = layer"))
      << refused;
}

}  // namespace
}  // namespace megalith::convert
