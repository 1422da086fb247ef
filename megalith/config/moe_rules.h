#pragma once
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Sets what [moe] leaves out where there are experts; else reports its keys, parallel.ep and parallel.etp.
void derive_moe(RunConfig& config, Problems& out);

/// Whether one of the scopes is a part of MoE layers only.
bool has_moe(const capture::ScopeSet& scopes);
/// The scopes of graphs of layers: graphs.scopes, or all that can be captured where a model with experts names none.
capture::ScopeSet graph_scopes(const RunPlan& plan);
/// Whether graphs would hold a part of MoE layers, which check_moe() refuses.
bool covers_experts(const capture::GraphsConfig& graphs);
/// Why the steps of a model with experts cannot be graphs (graphs.mode = iteration); empty where they can.
std::string why_no_iteration(const RunPlan& plan);
/// The same for evaluations, which drop no rows and so pad none.
std::string why_no_evaluation_graph(const RunPlan& plan);
/// Why the GEMMs of experts cannot run as one kernel; empty where they can.
std::string why_no_grouped_gemm(const RunPlan& plan);
/// The rule that they break, and the fix.
extern const char* const kExpertsInGraphs;

/// Rules that tie keys of [moe] to each other, to the model and to the grid.
void check_moe(const RunPlan& plan, Problems& out);

}  // namespace megalith::config
