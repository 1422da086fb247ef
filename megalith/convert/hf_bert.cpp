#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/convert/hf_blocks.h"
#include "megalith/io/file_problems.h"
#include "megalith/model/chunk.h"

// BERT (classes BertForPreTraining, BertForMaskedLM and BertModel; norms after the residual sums) and Megatron-BERT
// (MegatronBertForPreTraining and the like; norms before the sublayers). Their linear weights are [out, in], as ours.
// The decoder is tied to the token table. Class 0 of cls.seq_relationship means, as in ours, that the second segment
// follows the first. Fine-tuned ones have a head of a task in place of those. Their biases of choices and spans add the
// same to all that the head chooses from: ours has none, an export writes zeros, and those of a folder are left out.
// Source: github.com/huggingface/transformers, models/bert and megatron_bert (names and layout).

namespace megalith::convert {
namespace {

constexpr const char* kAct = "hidden_act";
/// End the names of classes of fine-tuned models, by nn::TaskForm.
constexpr std::string_view kTaskClasses[] = {"ForSequenceClassification", "ForMultipleChoice", "ForQuestionAnswering"};
constexpr Index kChoices = 4;  // of a question of RACE; the weights do not depend on it
constexpr std::string_view kPooler = "pooler (pooler.dense)";
constexpr std::string_view kPredictionBias = "cls.predictions.bias", kDecoderBias = "cls.predictions.decoder.bias";
constexpr std::string_view kBertHeads[] = {"cls.", "classifier.", "qa_outputs."};
constexpr Index kPairTypes = 2;  // token types of a sample of two segments

/// The library's names of both forms of GELU; the first of a form is written.
constexpr std::pair<std::string_view, nn::Activation> kGelus[] = {{"gelu", nn::Activation::gelu_erf},
                                                                  {"gelu_new", nn::Activation::gelu},
                                                                  {"gelu_python", nn::Activation::gelu_erf},
                                                                  {"gelu_pytorch_tanh", nn::Activation::gelu},
                                                                  {"gelu_fast", nn::Activation::gelu}};

nn::Activation read_gelu(const HfConfig& config) {
  const std::string name = config.text_or(kAct, "gelu");
  for (const auto& [theirs, ours] : kGelus) {
    if (name == theirs) return ours;
  }
  config.fail(kAct, "must be gelu, gelu_python, gelu_new, gelu_pytorch_tanh or gelu_fast: others are not built yet");
}

std::string_view gelu_name(nn::Activation activation) {
  for (const auto& [theirs, ours] : kGelus) {
    if (ours == activation) return theirs;
  }
  throw InternalError("[convert] hidden_act: no name for the activation");
}

/// Runs readers of keys. What they refuse is reported together.
class BertConfigProblems {
 public:
  template <class Read>
  void operator()(const Read& read) {
    try {
      read();
    } catch (const InputError& error) {
      problems_.add(error.what());
    }
  }
  void throw_if_any(const HfConfig& config) const { problems_.throw_if_any(config.file()); }

 private:
  io::FileProblems problems_;
};

void read_bert_sizes(const HfConfig& config, model::ModelConfig& m, BertConfigProblems& keep) {
  keep([&] { m.num_layers = config.size("num_hidden_layers", model::kMaxLayers); });
  keep([&] { m.ffn_hidden_size = config.size("intermediate_size"); });
  keep([&] { m.vocab_size = config.size("vocab_size"); });
  keep([&] { m.seq_len = config.size("max_position_embeddings"); });
  keep([&] { m.token_types = config.size_or("type_vocab_size", kPairTypes); });
  keep([&] {
    m.hidden_size = config.size("hidden_size");
    m.num_heads = config.size("num_attention_heads");
    if (m.hidden_size % m.num_heads != 0)
      config.fail("num_attention_heads", str("must divide hidden_size = ", m.hidden_size));
  });
}

/// The head of a task that the class of a fine-tuned model has; nothing for other classes.
std::optional<nn::TaskHeadSpec> read_task_head(const HfConfig& config) {
  const std::vector<std::string> classes = config.texts("architectures");
  const auto is = [&](std::string_view end) {
    return !classes.empty() && std::string_view(classes.front()).ends_with(end);
  };
  if (is(kTaskClasses[0])) {
    constexpr std::size_t kFewest = 2;
    const std::size_t labels = config.labels().size();
    if (labels < kFewest) config.fail("architectures", "must have at least two labels: regression is not built");
    return nn::TaskHeadSpec{.form = nn::TaskForm::classes, .classes = static_cast<Index>(labels)};
  }
  if (is(kTaskClasses[1])) return nn::TaskHeadSpec{.form = nn::TaskForm::choices, .classes = kChoices};
  if (is(kTaskClasses[2])) return nn::TaskHeadSpec{.form = nn::TaskForm::spans};
  return std::nullopt;
}

/// All that megalith would compute otherwise is reported together.
model::ModelConfig read_bert_config(const HfConfig& config, nn::NormPlacement placement) {
  BertConfigProblems keep;
  model::ModelConfig m = model::bert_defaults();
  m.norm_placement = placement;
  read_bert_sizes(config, m, keep);
  keep([&] { m.activation = read_gelu(config); });
  keep([&] { m.norm_eps = config.positive_or("layer_norm_eps", 1e-12); });
  constexpr double kLibrarysDropout = 0.1;
  keep([&] { m.dropout = m.embedding_dropout = config.probability_or("hidden_dropout_prob", kLibrarysDropout); });
  keep([&] { m.attention_dropout = config.probability_or("attention_probs_dropout_prob", kLibrarysDropout); });
  constexpr const char* kPositions = "position_embedding_type";
  keep([&] { config.expect_or_null(kPositions, "absolute", "must be absolute: relative positions are not built"); });
  keep([&] { config.expect_or_null("is_decoder", false, "must be false: attention goes in both directions"); });
  keep([&] { config.expect_or_null("add_cross_attention", false, "must be false"); });
  keep([&] {
    config.expect_or_null("tie_word_embeddings", true, "must be true: the head for masked tokens has the token table");
  });
  keep([&] { m.task = read_task_head(config); });
  keep.throw_if_any(config);
  if (m.token_types < kPairTypes) m.bert.order = data::SentenceOrder::none;
  m.bert.seq_len = m.seq_len;
  return m;
}

nlohmann::ordered_json write_bert_config(const model::ModelConfig& m) {
  return {{kAct, gelu_name(m.activation)},
          {"vocab_size", m.vocab_size},
          {"max_position_embeddings", m.positions()},
          {"type_vocab_size", m.token_types},
          {"hidden_size", m.hidden_size},
          {"num_hidden_layers", m.num_layers},
          {"num_attention_heads", m.num_heads},
          {"intermediate_size", m.ffn_hidden_size},
          {"layer_norm_eps", m.norm_eps},
          {"initializer_range", 0.02},
          {"hidden_dropout_prob", m.dropout},
          {"attention_probs_dropout_prob", m.attention_dropout},
          {"position_embedding_type", "absolute"},
          {"is_decoder", false},
          {"tie_word_embeddings", true}};
}

std::string bert_misfit(const model::ModelConfig& m, nn::NormPlacement placement) {
  const bool is_post = placement == nn::NormPlacement::post;
  return first_misfit(
      {{m.norm == nn::NormKind::layer, "model.norm = layer"},
       {m.norm_placement == placement, is_post ? "model.norm_placement = post" : "model.norm_placement = pre"},
       {m.token_types > 0, "model.token_types of at least 1"},
       {!m.has_rope(), "model.position = learned"},
       {m.kv_heads() == m.num_heads, "model.num_kv_heads = num_heads"},
       {m.head_width() * m.num_heads == m.hidden_size, "model.head_dim = hidden_size / num_heads"},
       {m.qk_norm == nn::QkNorm::none, "model.qk_norm = none"},
       {m.activation != nn::Activation::swiglu, "model.activation = gelu or gelu_erf"},
       {m.biases == nn::Biases::all, "model.bias = all"},
       {m.tying == model::Tying::tied, "model.tied = true"}});
}

/// Ours and theirs without .weight and .bias, which have the same names and shapes in both.
struct SameModule {
  std::string_view ours, theirs;
};
constexpr SameModule kOutsideLayers[] = {{"embedding.token", "embeddings.word_embeddings"},
                                         {"embedding.position", "embeddings.position_embeddings"},
                                         {"embedding.type", "embeddings.token_type_embeddings"},
                                         {"embedding.norm", "embeddings.LayerNorm"},
                                         {"final_norm", "encoder.ln"},
                                         {"head.mlm.dense", "cls.predictions.transform.dense"},
                                         {"head.mlm.norm", "cls.predictions.transform.LayerNorm"},
                                         {"head.mlm", "cls.predictions"},
                                         {"head.pooler", "pooler.dense"},
                                         {"head.order", "cls.seq_relationship"},
                                         {"head.classes", "classifier"},
                                         {"head.choice", "classifier"},
                                         {"head.span", "qa_outputs"}};
constexpr SameModule kInLayers[] = {
    {"attention.out", "attention.output.dense"}, {"mlp.up", "intermediate.dense"}, {"mlp.down", "output.dense"}};
constexpr SameModule kPostNorms[] = {{"norm1", "attention.output.LayerNorm"}, {"norm2", "output.LayerNorm"}};
constexpr SameModule kPreNorms[] = {{"norm1", "attention.ln"}, {"norm2", "ln"}};

std::string_view theirs_of(std::span<const SameModule> modules, std::string_view ours) {
  for (const SameModule& module : modules) {
    if (module.ours == ours) return module.theirs;
  }
  return {};
}

std::vector<HfTensor> bert_tensors(const model::ModelConfig& m, std::string_view ours, const Shape& shape) {
  const auto split = [](std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return std::pair(name.substr(0, dot), name.substr(dot + 1));  // module; weight or bias
  };
  const std::optional<LayerParam> param = layer_param(ours);
  const auto [module, kind] = split(param ? param->name : ours);
  if (!param) {
    const std::string_view theirs = theirs_of(kOutsideLayers, module);
    if (theirs.empty()) return {};
    return {same(str(theirs, '.', kind), shape)};
  }
  const std::string layer = str("encoder.layer.", param->number, '.');
  if (module == "attention.qkv") {
    const auto of = [&, &kind = kind](std::string_view name) { return str(layer, "attention.self.", name, '.', kind); };
    return qkv_tensors(m, {of("query"), of("key"), of("value")}, shape);
  }
  std::string_view theirs = theirs_of(kInLayers, module);
  if (theirs.empty()) theirs = theirs_of(m.is_post_norm() ? kPostNorms : kPreNorms, module);
  if (theirs.empty()) return {};
  return {same(str(layer, theirs, '.', kind), shape)};
}

/// Biases that our heads of tasks have not.
std::vector<HfTensor> bert_zeros(const model::ModelConfig& m) {
  if (!m.task || m.task->form == nn::TaskForm::classes) return {};
  constexpr Index kEnds = 2;  // first and last token of an answer
  if (m.task->form == nn::TaskForm::choices) return {same("classifier.bias", {1})};
  return {same("qa_outputs.bias", {kEnds})};
}

std::vector<HfCopy> bert_copies(const model::ModelConfig& m) {
  if (m.task) return {};
  return {{"cls.predictions.decoder.weight", model::kTokenTable, {m.vocab_size, m.hidden_size}},
          {std::string(kDecoderBias), "head.mlm.bias", {m.vocab_size}}};
}

/// Numbers of positions and types, which some versions save.
bool is_bert_buffer(std::string_view name) {
  return name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids");
}

/// Models converted from TensorFlow call the parameters of norms gamma and beta.
std::vector<std::string> bert_other_names(std::string_view name) {
  if (name == kPredictionBias) return {std::string(kDecoderBias)};
  constexpr std::pair<std::string_view, std::string_view> kNorms[] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                                                      {"LayerNorm.bias", "LayerNorm.beta"}};
  for (const auto& [now, before] : kNorms) {
    if (name.ends_with(now)) return {str(name.substr(0, name.size() - now.size()), before)};
  }
  return {};
}

/// The classes for spans are built without a pooler.
std::string_view bert_left_out(const model::ModelConfig& m, std::string_view name) {
  const bool has_none = m.task && m.task->form == nn::TaskForm::spans;
  return has_none && (name.ends_with("pooler.dense.weight") || name.ends_with("pooler.dense.bias")) ? kPooler : "";
}

std::string_view bert_lacking_head(std::string_view ours) {
  if (ours.starts_with("head.mlm.")) return "head for masked tokens (cls.predictions)";
  if (ours.starts_with("head.pooler.")) return kPooler;
  if (ours.starts_with("head.order.")) return "head for the order (cls.seq_relationship)";
  return {};
}

/// What tells the families apart: where norms stand, and the names of both. The last three classes are those of
/// kTaskClasses.
constexpr std::size_t kFirstTaskClass = 3;
template <nn::NormPlacement placement>
struct BertNames;
template <>
struct BertNames<nn::NormPlacement::post> {
  static constexpr std::string_view kType = "bert", kName = "BERT", kPair = "BertForPreTraining",
                                    kSingle = "BertForMaskedLM";
  static constexpr std::array<std::string_view, 6> kOthers = {kSingle,
                                                              "BertModel",
                                                              "BertForNextSentencePrediction",
                                                              "BertForSequenceClassification",
                                                              "BertForMultipleChoice",
                                                              "BertForQuestionAnswering"};
};
template <>
struct BertNames<nn::NormPlacement::pre> {
  static constexpr std::string_view kType = "megatron-bert", kName = "Megatron-BERT",
                                    kPair = "MegatronBertForPreTraining", kSingle = "MegatronBertForMaskedLM";
  static constexpr std::array<std::string_view, 6> kOthers = {kSingle,
                                                              "MegatronBertModel",
                                                              "MegatronBertForNextSentencePrediction",
                                                              "MegatronBertForSequenceClassification",
                                                              "MegatronBertForMultipleChoice",
                                                              "MegatronBertForQuestionAnswering"};
};

template <nn::NormPlacement placement>
constexpr HfFamily bert_family() {
  using Names = BertNames<placement>;
  return {.model_type = Names::kType,
          .architecture = Names::kPair,
          .name = Names::kName,
          .prefix = "bert.",
          .heads = kBertHeads,
          .other_architectures = Names::kOthers,
          .is_bert = true,
          .read_config = [](const HfConfig& config) { return read_bert_config(config, placement); },
          .write_config = write_bert_config,
          .misfit = [](const model::ModelConfig& m) { return bert_misfit(m, placement); },
          .tensors_of = bert_tensors,
          .zeros = bert_zeros,
          .needs_zeros = false,
          .copies = bert_copies,
          .is_ignored = is_bert_buffer,
          .left_out = bert_left_out,
          .other_names = bert_other_names,
          .lacking_head = bert_lacking_head,
          .written_architecture = [](const model::ModelConfig& m) -> std::string_view {
            if (m.task) return Names::kOthers[kFirstTaskClass + static_cast<std::size_t>(m.task->form)];
            return m.bert.is_pair() ? Names::kPair : Names::kSingle;
          }};
}

}  // namespace

const HfFamily kHfBert = bert_family<nn::NormPlacement::post>();
const HfFamily kHfMegatronBert = bert_family<nn::NormPlacement::pre>();

}  // namespace megalith::convert
