#include "megalith/nn/sublayer_spec.h"

#include "megalith/nn/gated_mlp.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/self_attention.h"

namespace megalith::nn {
namespace {

void declare_body(std::vector<ParamSpec>& params, const std::string& name, const AttentionSpec& spec,
                  const StreamSpec& stream, const comm::Group& tp) {
  SelfAttention::declare(params, name, spec, stream, tp);
}
void declare_body(std::vector<ParamSpec>& params, const std::string& name, const MlpSpec& spec,
                  const StreamSpec& stream, const comm::Group& tp) {
  Mlp::declare(params, name, spec, stream, tp);
}

std::unique_ptr<Sublayer> make_body(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                                    const TensorParallel& tp, ParamSet& params) {
  return std::make_unique<SelfAttention>(name, spec, options, tp, params);
}
std::unique_ptr<Sublayer> make_body(const std::string& name, const MlpSpec& spec, const SublayerOptions& options,
                                    const TensorParallel& tp, ParamSet& params) {
  if (spec.activation == Activation::swiglu) return std::make_unique<GatedMlp>(name, options, tp, params);
  return std::make_unique<Mlp>(name, options, tp, params);
}

bool is_captured(const AttentionSpec&, const LayerCapture& capture) { return capture.attention; }
bool is_captured(const MlpSpec&, const LayerCapture& capture) { return capture.mlp; }

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

}  // namespace

void declare(std::vector<ParamSpec>& params, const SublayerSpec& spec, const StreamSpec& stream,
             const TensorParallel& tp) {
  const auto first = static_cast<std::ptrdiff_t>(params.size());
  Norm::declare(params, spec.norm, stream.hidden_size, tp);
  std::visit([&](const auto& body) { declare_body(params, spec.name, body, stream, tp.group()); }, spec.body);
  for (auto param = params.begin() + first; param != params.end(); ++param) param->layer = spec.layer;
}

SublayerStack::Entry make_entry(const SublayerSpec& spec, const SublayerOptions& options, const TensorParallel& tp,
                                ParamSet& params) {
  return {.layer = spec.layer,
          .norm = Norm(spec.norm, params),
          .sublayer =
              std::visit([&](const auto& body) { return make_body(spec.name, body, options, tp, params); }, spec.body),
          .dropout = {spec.dropout, options.seed, spec.dropout_site},
          .captured = std::visit([&](const auto& body) { return is_captured(body, options.capture); }, spec.body)};
}

ForwardFlops forward_flops(const SublayerSpec& spec, const StreamSpec& stream, Index seq_len) {
  const auto hidden = static_cast<double>(stream.hidden_size), length = static_cast<double>(seq_len);
  return std::visit([&](const auto& body) { return body_flops(body, hidden, length); }, spec.body);
}

}  // namespace megalith::nn
