#include "megalith/nn/sublayer_spec.h"

#include "megalith/nn/gated_mlp.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/moe/moe.h"
#include "megalith/nn/self_attention.h"

namespace megalith::nn {
namespace {

void declare_body(std::vector<ParamSpec>& params, const std::string& name, const AttentionSpec& spec,
                  const StreamSpec& stream, const LayerGroups& groups) {
  SelfAttention::declare(params, name, spec, stream, groups.tp.group());
}
void declare_body(std::vector<ParamSpec>& params, const std::string& name, const MlpSpec& spec,
                  const StreamSpec& stream, const LayerGroups& groups) {
  Mlp::declare(params, name, spec, stream, groups.tp.group());
}
void declare_body(std::vector<ParamSpec>& params, const std::string& name, const MoeSpec& spec,
                  const StreamSpec& stream, const LayerGroups& groups) {
  Moe::declare(params, name, spec, stream, groups);
}

std::unique_ptr<Sublayer> make_body(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                                    const LayerGroups& groups, ParamSet& params) {
  return std::make_unique<SelfAttention>(name, spec, options, groups.tp, params);
}
std::unique_ptr<Sublayer> make_body(const std::string& name, const MlpSpec& spec, const SublayerOptions& options,
                                    const LayerGroups& groups, ParamSet& params) {
  if (spec.activation == Activation::swiglu) return std::make_unique<GatedMlp>(name, options, groups.tp, params);
  const auto form = spec.activation == Activation::gelu_erf ? ops::GeluForm::erf : ops::GeluForm::tanh;
  return std::make_unique<Mlp>(name, form, options, groups.tp, params);
}
std::unique_ptr<Sublayer> make_body(const std::string& name, const MoeSpec& spec, const SublayerOptions& options,
                                    const LayerGroups& groups, ParamSet& params) {
  return std::make_unique<Moe>(name, spec, options, groups, params);
}

ForwardFlops body_flops(const AttentionSpec& spec, double hidden, double seq_len) {
  const auto width = static_cast<double>(spec.num_heads * spec.head_dim);
  const auto kv_width = static_cast<double>(spec.num_kv_heads * spec.head_dim);
  return {.first_gemms = 2 * hidden * (width + 2 * kv_width),
          .attention = 4 * seq_len * width,
          .last_gemm = 2 * width * hidden};
}
ForwardFlops body_flops(const MlpSpec& spec, double hidden, double) {
  const auto ffn = static_cast<double>(spec.ffn_hidden_size);
  const double gates = spec.activation == Activation::swiglu ? 2 : 1;
  return {.first_gemms = 2 * hidden * gates * ffn, .last_gemm = 2 * ffn * hidden};
}
ForwardFlops body_flops(const MoeSpec& spec, double hidden, double) {
  const MoeConfig& moe = spec.config;
  const auto width = static_cast<double>(moe.top_k * moe.ffn_hidden_size + moe.shared_ffn_hidden_size);
  const double gates = spec.activation == Activation::swiglu ? 2 : 1;
  const double router = static_cast<double>(moe.num_experts + (moe.shared_gate ? 1 : 0));
  return {.first_gemms = 2 * hidden * (gates * width + router), .last_gemm = 2 * width * hidden};
}

}  // namespace

void declare(std::vector<ParamSpec>& params, const SublayerSpec& spec, const StreamSpec& stream,
             const LayerGroups& groups) {
  const auto first = static_cast<std::ptrdiff_t>(params.size());
  Norm::declare(params, spec.norm, stream.hidden_size, groups.tp);
  std::visit([&](const auto& body) { declare_body(params, spec.name, body, stream, groups); }, spec.body);
  for (auto param = params.begin() + first; param != params.end(); ++param) param->layer = spec.layer;
}

SublayerStack::Entry make_entry(const SublayerSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
                                ParamSet& params) {
  return {.layer = spec.layer,
          .norm = Norm(spec.norm, params),
          .sublayer = std::visit([&](const auto& body) { return make_body(spec.name, body, options, groups, params); },
                                 spec.body),
          .dropout = {spec.dropout, options.seed, spec.dropout_site},
          .captured_end = options.captured_end};
}

ForwardFlops forward_flops(const SublayerSpec& spec, const StreamSpec& stream, Index seq_len) {
  const auto hidden = static_cast<double>(stream.hidden_size), length = static_cast<double>(seq_len);
  return std::visit([&](const auto& body) { return body_flops(body, hidden, length); }, spec.body);
}

}  // namespace megalith::nn
