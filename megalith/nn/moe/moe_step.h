#pragma once
#include "megalith/nn/moe/moe_totals.h"
#include "megalith/nn/moe/router_decisions.h"

namespace megalith::nn {

/// How routers choose experts: by their scores, or all experts alike, whatever the scores (a warm-up's are all 0).
enum class Routing : std::uint8_t { by_score, even };

/// What the MoE layers of a rank share in a step.
struct MoeStep {
  MoeTotals totals = {};  ///< training only
  Routing routing = Routing::by_score;
  RouterDecisions* decisions = &no_router_decisions();  ///< training only
};

}  // namespace megalith::nn
