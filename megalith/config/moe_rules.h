#pragma once
#include "megalith/config/run_plan.h"
#include "megalith/model/expert_counts.h"

namespace megalith::config {

/// Sets what [moe] leaves out where there are experts; else reports its keys, parallel.ep and parallel.etp.
void derive_moe(RunConfig& config, Problems& out);

/// What the rows of a rank of experts follow from.
struct BudgetFacts {
  Index num_experts = 0, top_k = 1, ep = 1;
  Index pairs = 0;  ///< of token and expert, of a rank and microbatch
  nn::EchoConfig echo = {};
  bool has_clones() const { return echo.slots > 0 && ep > 1; }
  /// Whether clones give every rank its even share of pairs, whatever the router chooses.
  bool has_even_loads() const;
};
BudgetFacts budget_facts(const RunPlan& plan);
/// The least legal factor: ep / K, so that one expert fits. With clones also at least 1, and 1 with even shares.
nn::RankCapacity least_rank_capacity(const BudgetFacts& of);
/// The larger of 2 and ep / K, or the worst case if that is not more. With clones that least factor, but at least 1.25
/// and 1 + min_pairs / pairs where shares need not be even.
nn::RankCapacity usual_rank_capacity(const BudgetFacts& of);
/// Sets the rows that ranks of experts have room for, where no key does. Needs the keys of [train].
void derive_rank_capacity(RunConfig& config, const grid::ResolvedSizes& grid);
/// Why ranks of experts may not read each other's rows (moe.dispatcher = peer), of rules that a recipe shows; else
/// empty.
std::string why_no_peers(const RunPlan& plan);
/// Whether ranks of experts exchange rows, and may do so by reading them.
bool may_read_rows(const RunPlan& plan);
/// Whether ranks of experts may have room for fewer rows than can come.
bool limits_rows(const RunPlan& plan);

/// Makes moe.dispatcher = auto peer where steps are graphs, which hold no numbers of rows that the host reads, and
/// ranks may read rows.
void choose_graph_dispatcher(RunPlan& plan);
/// The same run with graphs.mode = iteration.
RunPlan iteration_plan(RunPlan plan);
/// "key = value and ...": with these settings the host reads no sizes of experts. Empty: it reads none already, or no
/// settings of the exchange of rows help.
std::string settings_without_host_sizes(const RunPlan& plan);
/// The scopes of graphs of layers: graphs.scopes, or all that can be captured where a model with experts names none.
capture::ScopeSet graph_scopes(const RunPlan& plan);
/// Whether graphs of layers with these scopes hold the routers of MoE layers.
bool hold_routers(const capture::ScopeSet& scopes);
/// The rule that they break where the host reads moe.replay, and the fix.
extern const char* const kReplayInGraphs;
/// Why the steps of a model with experts cannot be graphs (graphs.mode = iteration); empty where they can.
std::string why_no_iteration(const RunPlan& plan);
/// The same for evaluations, which drop no rows and so pad none.
std::string why_no_evaluation_graph(const RunPlan& plan);
/// Why the GEMMs of experts cannot run as one kernel; empty where they can.
std::string why_no_grouped_gemm(const RunPlan& plan);

/// Rows of a microbatch in an MoE layer of a rank: those that it routes, and those that its dispatcher sorts by
/// destination.
struct MoeRows {
  Index routed = 0, permuted = 0;
};
MoeRows moe_rows(const RunPlan& plan);
model::ExpertSetting expert_setting(const RunPlan& plan);
/// Whether experts may have clones on other ranks.
bool has_clones(const RunPlan& plan);
/// Ranks that exchange rows of experts; 1: none do.
int exchanging_ranks(const RunPlan& plan);

/// Rules that tie keys of [moe] to each other, to the model and to the grid.
void check_moe(const RunPlan& plan, Problems& out);
/// Those of them on graphs.
void check_moe_graphs(const RunPlan& plan, Problems& out);

}  // namespace megalith::config
