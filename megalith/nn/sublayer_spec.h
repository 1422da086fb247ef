#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "megalith/nn/fp8_config.h"
#include "megalith/nn/moe/expert_parallel.h"
#include "megalith/nn/moe/moe_config.h"
#include "megalith/nn/recompute_config.h"
#include "megalith/nn/sublayer_stack.h"
#include "megalith/ops/attention.h"

namespace megalith::nn {

// Descriptions of sublayers as data. Parameters are declared, sublayers built and FLOPs counted from the same
// description. Sizes are global; each rank holds its shard.

/// What all sublayers of a model share.
struct StreamSpec {
  Index hidden_size = 0;
  double init_std = 0.02;
  double residual_init_std = 0.02;  ///< of the weights right before a residual sum
  NormPlacement norm_placement = NormPlacement::pre;
};

/// Self-attention.
struct AttentionSpec {
  Index num_heads = 0, num_kv_heads = 0, head_dim = 0;
  PositionKind position = PositionKind::learned;  ///< rope: q and k are rotated by Microbatch::rope_table
  QkNorm qk_norm = QkNorm::none;
  double qk_norm_eps = 1e-5;
  Biases biases = Biases::all;
  double dropout = 0;              ///< on the probabilities
  std::uint32_t dropout_site = 0;  ///< random site
  ops::AttentionMask mask = ops::AttentionMask::causal;
};

/// Two GEMMs with an activation between them.
struct MlpSpec {
  Index ffn_hidden_size = 0;
  Activation activation = Activation::gelu;
  Biases biases = Biases::all;
};

/// A mixture of experts in place of an MLP. No biases.
struct MoeSpec {
  MoeConfig config;
  Activation activation = Activation::gelu;
  Index capacity_run = 0;  ///< tokens, of config.capacity
  Index moe_layer = 0;     ///< number among the MoE layers of the model
};

/// The work of a sublayer: one alternative per class of sublayers.
using SublayerBody = std::variant<AttentionSpec, MlpSpec, MoeSpec>;

/// A sublayer, its norm and the dropout after it: r' = r + dropout(sublayer(norm(r))), or with
/// StreamSpec::norm_placement = post r' = norm(r + dropout(sublayer(r))).
struct SublayerSpec {
  Index layer = 0;   ///< of the model, to which it belongs
  std::string name;  ///< prefix of its parameters
  NormSpec norm;
  SublayerBody body;
  double dropout = 0;
  std::uint32_t dropout_site = 0;
};

/// How a run computes a sublayer, for any model.
struct SublayerOptions {
  std::uint64_t seed = 0;
  RecomputeConfig recompute = {};
  Index group_alignment = 1;                                      ///< of the rows of experts (ops::GroupRows)
  std::optional<ForwardStage> captured_end = ForwardStage::seam;  ///< SublayerStages
  GemmFormats gemms = {};
  GemmFormats expert_gemms = {};  ///< of experts; shared ones have `gemms`
};

/// Appends the parameters of the norm and the sublayer, in the order of their ops.
void declare(std::vector<ParamSpec>& params, const SublayerSpec& spec, const StreamSpec& stream,
             const LayerGroups& groups);
/// The sublayer, with the parameters that were declared from the same spec.
SublayerStack::Entry make_entry(const SublayerSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
                                ParamSet& params);

/// FLOPs of one token's forward pass, 2 per multiplication and addition. Only GEMMs and attention are counted; of
/// experts those that a token passes.
struct ForwardFlops {
  double first_gemms = 0;  ///< before the local work: q, k and v; up; the router
  double attention = 0;    ///< scores and weighted sum, not halved for causality
  double last_gemm = 0;    ///< before the residual sum: out; down
  double total() const { return first_gemms + attention + last_gemm; }
};
ForwardFlops forward_flops(const SublayerSpec& spec, const StreamSpec& stream, Index seq_len);

}  // namespace megalith::nn
