#pragma once
#include <string>

#include "tests/train/moe_run.h"

// Recipes whose experts have clones.

namespace megalith::support {

/// A router that prefers the first experts a little: ranks differ in load, and a clone takes a part of its expert's
/// pairs.
inline constexpr double kSkew = 0.04;
inline const MoeModel kSkewed{"Skewed", [](config::RunConfig& c) { c.moe.router_skew = kSkew; }};

/// ECHO as a recipe sets it.
struct EchoWay {
  std::string weights = "keep", backend = "auto", dispatcher = "auto", balance = "greedy";
  bool overlap = true;
  Index slots = 3;
  std::string name() const {
    return str(weights, ' ', backend, ' ', dispatcher, ' ', balance, overlap ? "" : " without overlap", ", slots ",
               slots);
  }
};

inline config::RunConfig echo_config(const MoeGrid& grid, const MoeModel& model, const EchoWay& way, Index steps,
                                     const std::string& precision = "fp64") {
  config::RunConfig recipe = moe_config(grid, model, precision, steps);
  recipe.moe.dispatcher = way.dispatcher;
  recipe.moe.echo = {.slots = way.slots,
                     .min_pairs = 0,
                     .check_plan = 1,
                     .balance = way.balance,
                     .weights = way.weights,
                     .backend = way.backend,
                     .overlap = way.overlap};
  if (way.slots == 0) recipe.moe.echo = {};
  return recipe;
}

}  // namespace megalith::support
