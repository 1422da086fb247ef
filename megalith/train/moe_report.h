#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/nn/moe/moe_totals.h"

namespace megalith::train {

/// The clones of an MoE layer's experts in a step (docs/echo.md), over all plans: those of each microbatch and group of
/// ranks that exchange rows.
struct EchoLoad {
  double before = 0, after = 0;  ///< pairs of the most loaded rank over the mean of ranks, without and with clones
  Index moved = 0, clones = 0;   ///< pairs that clones took over, and clones
  Index dropped = 0;             ///< pairs that were to move and stayed home
  Index wanted = 0;              ///< slots of a rank that would suffice in all plans
  double bytes = 0;              ///< of clones' weights and gradients, as often as they are sent between ranks
  double exposed_us = 0;         ///< for which transfers of clones keep a rank waiting, where that is longest
};

/// Bytes of a clone's weights and gradients on their ways in a microbatch, for a layer of the model: weights for each
/// forward pass (two where it is recomputed) and once more with EchoWeights::redispatch; gradients once.
double clone_bytes(const config::RunPlan& plan, Index layer);

/// The load of an MoE layer in a step, over the whole global batch.
struct ExpertLoad {
  Index layer = 0;                                ///< of the model
  double max_over_mean = 0, p95_over_mean = 0;    ///< of the experts' choices; 1 where the load is even
  std::vector<std::pair<Index, double>> hottest;  ///< up to three experts and their shares of all choices, falling
  Index empty = 0;                                ///< experts that no token chose
  Index choices = 0, dropped = 0;                 ///< pairs of token and expert, and those beyond the capacity
  std::optional<EchoLoad> echo;                   ///< with ECHO
  double bias_min = 0, bias_max = 0;              ///< of the expert bias before the step's update
};

/// What a step reports about its MoE layers.
struct MoeReport {
  std::vector<ExpertLoad> layers;
  double aux_loss = 0, z_loss = 0;  ///< weighted, summed over the layers, per token
  bool has_bias = false;

  bool empty() const { return layers.empty(); }
  /// The layer with the greatest max_over_mean. There must be one.
  const ExpertLoad& worst() const;
  /// Pairs of the most loaded rank over the mean, in the layer where that is largest: without clones, and with them.
  struct RankLoads {
    double before = 0, after = 0;
  };
  /// Nothing without ECHO.
  std::optional<RankLoads> worst_ranks() const;
  /// {"layers":[...],"aux_loss":...}
  std::string json() const;
};

/// From the totals of a step on the host. `layers`: numbers of the MoE layers in the model; `tokens`: of the global
/// batch.
MoeReport moe_report(const nn::MoeTotals& totals, const std::vector<Index>& layers, double tokens, bool has_bias);

}  // namespace megalith::train
