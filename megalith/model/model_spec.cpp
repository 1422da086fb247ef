#include "megalith/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "megalith/base/str.h"
#include "megalith/comm/world.h"
#include "megalith/model/chunk.h"
#include "megalith/nn/gpt_layer.h"
#include "megalith/nn/lm_head.h"

namespace megalith::model {
namespace {

/// 124439808 -> "124,439,808"
std::string grouped(Index value) {
  std::string text = std::to_string(value);
  for (std::size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, ",");
  return text;
}

}  // namespace

std::span<const nn::SublayerSpec> ModelSpec::of_layers(Index begin, Index end) const {
  const auto first = std::ranges::lower_bound(sublayers, begin, {}, &nn::SublayerSpec::layer);
  const auto last = std::ranges::lower_bound(sublayers, end, {}, &nn::SublayerSpec::layer);
  return {first, last};
}

namespace {

nn::OrderLoss order_loss(const ModelConfig& m) {
  return m.bert.is_pair() ? nn::OrderLoss::two_classes : nn::OrderLoss::none;
}

HeadBody head_body(const ModelConfig& m) {
  if (!m.is_bert()) return LmHeadSpec{};
  if (m.task) {
    nn::TaskHeadSpec task = *m.task;
    task.dropout = m.dropout;
    task.dropout_site = nn::first_free_site(m.num_layers);
    return task;
  }
  return nn::BertHeadSpec{
      .masked_lm = {.name = "head.mlm",
                    .norm = m.norm,
                    .norm_eps = m.norm_eps,
                    .gelu = m.activation == nn::Activation::gelu_erf ? ops::GeluForm::erf : ops::GeluForm::tanh},
      .order = order_loss(m)};
}

double residual_init_std(const ModelConfig& m) {
  return m.init_depth_scaling ? m.init_std / std::sqrt(2.0 * static_cast<double>(m.num_layers)) : m.init_std;
}

/// FLOPs of the GEMMs of the head for one token.
double head_flops(const ModelSpec& spec) {
  const auto hidden = static_cast<double>(spec.stream.hidden_size),
             vocab = static_cast<double>(spec.embedding.padded_vocab_size), seq_len = static_cast<double>(spec.seq_len);
  if (const auto* task = std::get_if<nn::TaskHeadSpec>(&spec.head.body)) {
    if (task->form == nn::TaskForm::spans) return 2 * 2 * hidden;
    const double numbers = 2 * hidden * (hidden + static_cast<double>(task->classes / task->sequences()));
    return spec.seq_len == 0 ? numbers : numbers / seq_len;
  }
  const auto* bert = std::get_if<nn::BertHeadSpec>(&spec.head.body);
  if (bert == nullptr) return 2 * vocab * hidden;
  const double masked = 2 * hidden * (vocab + hidden);
  const auto classes = static_cast<double>(nn::PooledClasses::Spec().classes);
  const double order = bert->order == nn::OrderLoss::none ? 0.0 : 2 * hidden * (hidden + classes);
  if (spec.seq_len == 0) return masked + order;
  return (static_cast<double>(spec.masked_tokens) * masked + order) / seq_len;
}

}  // namespace

std::span<const nn::LossSpec> losses_of(const ModelConfig& model) {
  if (model.task) return nn::TaskHead::losses();
  if (model.is_bert()) return nn::BertHead::losses(order_loss(model));
  return nn::LmHead::kLosses;
}

ModelSpec model_spec(const ModelConfig& m) {
  const grid::LayerRange all{0, m.num_layers};
  return model_spec(m, {&all, 1});
}

ModelSpec model_spec(const ModelConfig& m, std::span<const grid::LayerRange> layers) {
  nn::GptLayerConfig layer_config{.hidden_size = m.hidden_size,
                                  .num_heads = m.num_heads,
                                  .ffn_hidden_size = m.ffn_hidden_size,
                                  .num_kv_heads = m.kv_heads(),
                                  .head_dim = m.head_width(),
                                  .dropout = m.dropout,
                                  .attention_dropout = m.attention_dropout,
                                  .norm = m.norm,
                                  .norm_eps = m.norm_eps,
                                  .position = m.position,
                                  .qk_norm = m.qk_norm,
                                  .activation = m.activation,
                                  .biases = m.biases,
                                  .mask = m.attention_mask()};
  const auto norm_named = [&](const char* name) { return std::optional(nn::NormSpec{name, m.norm_eps, m.norm}); };
  ModelSpec spec{.stream = {.hidden_size = m.hidden_size,
                            .init_std = m.init_std,
                            .residual_init_std = residual_init_std(m),
                            .norm_placement = m.norm_placement},
                 .seq_len = m.seq_len,
                 .embedding = {.vocab_size = m.vocab_size,
                               .padded_vocab_size = m.padded_vocab_size,
                               .num_positions = m.has_rope() ? 0 : m.positions(),
                               .num_types = m.token_types,
                               .dropout = m.embedding_dropout,
                               .norm = m.is_post_norm() ? norm_named("embedding.norm") : std::nullopt},
                 .sublayers = {},
                 .head = {.norm = m.is_post_norm() ? std::nullopt : norm_named("final_norm"),
                          .tying = m.tying,
                          .body = head_body(m)},
                 .masked_tokens = m.is_masked_lm() ? m.bert.max_masked() : 0,
                 .rope = {}};
  if (m.has_rope()) spec.rope = m.rope_frequencies();
  const auto is_held = [&](Index layer) {
    return std::ranges::any_of(layers, [&](const auto& range) { return range.begin <= layer && layer < range.end; });
  };
  for (Index layer = 0, moe_layers = 0; layer < m.num_layers; ++layer) {
    const Index moe_layer = moe_layers;
    if (m.moe.is_moe_layer(layer)) ++moe_layers;
    if (!is_held(layer)) continue;
    layer_config.experts.reset();
    if (m.moe.is_moe_layer(layer)) layer_config.experts = nn::MoeSpec{m.moe, m.activation, m.capacity_run(), moe_layer};
    const auto sublayers = nn::gpt_layer(str("layers.", layer), layer, layer_config);
    spec.sublayers.insert(spec.sublayers.end(), sublayers.begin(), sublayers.end());
  }
  return spec;
}

namespace {

/// The sum of elements(parameter) over the whole model on one rank.
template <class Elements>
Index sum_of_parameters(const ModelConfig& model, const Elements& elements) {
  const std::unique_ptr<comm::World> one_rank = comm::dry_world(0, 1);
  const nn::TensorParallel tp{one_rank->all(), nn::SequenceParallel::off, 1};
  const nn::LayerGroups groups{tp, nn::ExpertParallel{tp, one_rank->all(), one_rank->all(), one_rank->all()}};
  Index sum = 0;
  for (const ParamSpec& param : declare_model(model_spec(model), {{{0, model.num_layers}, true, true}}, groups))
    sum += elements(param);
  return sum;
}

/// Elements of the parameters that a token passes: of each MoE layer those of top_k experts.
Index count_active(const ModelConfig& m) {
  return sum_of_parameters(m, [&](const ParamSpec& param) {
    const bool is_of_experts = param.slice.name.find(".moe.experts.") != std::string::npos;
    return is_of_experts ? param.held.numel() / m.moe.num_experts * m.moe.top_k : param.held.numel();
  });
}

}  // namespace

Index count_parameters(const ModelConfig& model) {
  return sum_of_parameters(model, [](const ParamSpec& param) { return param.held.numel(); });
}

Index count_padding(const ModelConfig& m) {
  const Index tables = m.tying == Tying::tied || m.task ? 1 : 2, biases = m.is_masked_lm() ? 1 : 0;
  return (m.padded_vocab_size - m.vocab_size) * (tables * m.hidden_size + biases);
}

std::string parameters_text(const ModelConfig& m) {
  const Index padding = count_padding(m);
  return str(grouped(count_parameters(m) - padding), " parameters",
             m.moe.has_experts() ? str(", ", grouped(count_active(m) - padding), " of them active") : "",
             padding == 0 ? "" : str(" (+ ", grouped(padding), " of padding)"));
}

double forward_flops_per_token(const ModelSpec& spec) {
  double sum = head_flops(spec);
  for (const nn::SublayerSpec& sublayer : spec.sublayers)
    sum += nn::forward_flops(sublayer, spec.stream, spec.seq_len).total();
  return sum;
}

double flops_per_token(const ModelConfig& model) { return 3 * forward_flops_per_token(model_spec(model)); }

double repeated_flops_per_token(const ModelSpec& spec, const nn::RecomputeConfig& recompute) {
  using nn::RecomputeModule;
  const bool is_full = recompute.mode == nn::RecomputeMode::full;
  const bool is_uniform = recompute.method == nn::RecomputeMethod::uniform;
  double sum = 0;
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const nn::SublayerSpec& sublayer = spec.sublayers[i];
    const nn::ForwardFlops flops = nn::forward_flops(sublayer, spec.stream, spec.seq_len);
    if (is_full && (is_uniform || sublayer.layer < recompute.layers)) {
      const bool is_last = i + 1 == spec.sublayers.size();
      const bool ends_layer = is_last || spec.sublayers[i + 1].layer != sublayer.layer;
      const bool ends_range = ends_layer && (is_last || !is_uniform || (sublayer.layer + 1) % recompute.layers == 0);
      sum += flops.total() - (ends_range ? flops.last_gemm : 0);
    }
    if (recompute.has(RecomputeModule::attention)) sum += flops.attention;
    if (recompute.has(RecomputeModule::mlp) && !std::holds_alternative<nn::AttentionSpec>(sublayer.body))
      sum += flops.first_gemms;
  }
  return sum;
}

}  // namespace megalith::model
