#pragma once
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"

namespace megalith::apps {

/// A part of layers that runs eagerly beside graphs of layers.
struct EagerPart {
  std::string part;         ///< "attention", "MLP", "experts", "experts after routing", "experts after sorting rows"
  std::vector<int> layers;  ///< of the model
  std::string why;
};
/// In the order of a layer; empty where graphs hold whole layers.
std::vector<EagerPart> eager_parts(const config::RunPlan& plan);

/// Why a step cannot be one graph (graphs.mode = iteration); "" where it can.
std::string no_iteration(const config::RunPlan& plan);
/// The same of evaluations, which may be eager where steps are graphs.
std::string no_evaluation_graph(const config::RunPlan& plan);

/// Throws ConfigError where graphs.scopes cannot be captured, whatever graphs.mode is.
void require_legal_scopes(const config::RunPlan& plan);

}  // namespace megalith::apps
