#include "megalith/config/moe_rules.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/nearest_size.h"
#include "megalith/config/plan_rules.h"
#include "megalith/grid/advice.h"
#include "megalith/model/expert_counts.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/rows.h"

namespace megalith::config {
namespace {

void refuse_without_experts(RunConfig& c, Problems& out) {
  const std::string rule = "is for models with experts: give moe.num_experts, or remove it";
  refuse_section("moe.", rule, c, out);
  const auto refuse = [&](const char* key, const std::optional<Index>& value, Index only) {
    if (value && *value != only) out.add(key, *value, rule);
  };
  refuse("parallel.ep", c.parallel.ep, 1);
  refuse("parallel.etp", c.parallel.etp, c.parallel.tp.value_or(1));
}

bool is_letter(char letter) { return letter == 'd' || letter == 'm'; }

/// A pattern of other letters is reported; then that of the default stands for it, so that other rules can be checked.
void derive_pattern(RunConfig::Moe& m, Problems& out) {
  const std::string standard = nn::MoeConfig{}.pattern;
  set_default(m.pattern, standard);
  if (!m.pattern->empty() && std::ranges::all_of(*m.pattern, is_letter)) return;
  std::string near = *m.pattern;
  std::erase_if(near, [](char letter) { return !is_letter(letter); });
  if (near.find('m') == std::string::npos) near += standard;
  out.add("moe.pattern", m.pattern->empty() ? "\"\"" : *m.pattern,
          str("must consist of d (dense) and m (mixture of experts); the nearest is ", near));
  m.pattern = standard;
}

/// Only ranks that read rows may have room for fewer than can come.
void derive_budget(RunConfig& c, Problems& out) {
  RunConfig::Moe& m = c.moe;
  const bool sends = m.dispatcher == "all_to_all";
  const auto refuse = [&](const char* key, const std::optional<std::string>& value) {
    if (!value || *value == "worst" || !sends) return;
    out.add(key, *value,
            "is for ranks that read each other's rows, moe.dispatcher = peer; it is all_to_all, with room for all "
            "rows that can come: remove the key");
  };
  refuse("moe.rank_capacity_factor", m.rank_capacity_factor);
  refuse("moe.overflow", m.overflow);
  if (sends) m.rank_capacity_factor = "worst";
  set_default(m.overflow, "rerun");
}

void derive_echo(RunConfig::Moe::Echo& echo) {
  const nn::EchoConfig defaults;
  set_default(echo.slots, defaults.slots);
  set_default(echo.balance, "greedy");
  set_default(echo.min_pairs, *echo.balance == "exact" ? 0 : defaults.min_pairs);
  set_default(echo.weights, "auto");
  set_default(echo.backend, "auto");
  set_default(echo.overlap, defaults.overlap);
  set_default(echo.check_plan, defaults.check_plan);
}

/// Some layer must be an MoE.
void check_pattern(const model::ModelConfig& m, Problems& out) {
  if (m.num_moe_layers() > 0) return;
  std::string near = m.moe.pattern.substr(0, static_cast<std::size_t>(m.num_layers));
  near.back() = 'm';
  const bool has_m = m.moe.pattern.find('m') != std::string::npos;
  out.add("moe.pattern", m.moe.pattern,
          str(has_m ? str("has no m within its first model.num_layers = ", m.num_layers, " letters") : "has no m",
              ": without MoE layers remove section [moe]; the nearest is ", near));
}

void check_router(const nn::MoeConfig& moe, Problems& out) {
  out.require(moe.num_experts > 1, "moe.num_experts", moe.num_experts,
              "must be at least 2; a dense model has no section [moe]");
  out.require(moe.top_k <= moe.num_experts, "moe.top_k", moe.top_k,
              str("must be in 1 .. moe.num_experts = ", moe.num_experts));
  out.require(moe.num_experts % moe.num_groups == 0, "moe.num_groups", moe.num_groups,
              str("must divide moe.num_experts = ", moe.num_experts, "; the nearest is ",
                  nearest_divisor(moe.num_experts, moe.num_groups)));
  out.require(moe.group_top_k <= moe.num_groups, "moe.group_top_k", moe.group_top_k,
              str("must be in 1 .. moe.num_groups = ", moe.num_groups));
  if (moe.num_experts % moe.num_groups == 0 && moe.group_top_k <= moe.num_groups) {
    const Index within = moe.num_experts / moe.num_groups * moe.group_top_k;
    out.require(moe.top_k <= within || moe.top_k > moe.num_experts, "moe.top_k", moe.top_k,
                str("must be at most ", within, ", the experts of moe.group_top_k = ", moe.group_top_k, " groups"));
  }
  out.require(!moe.has_expert_bias() || moe.score == ops::RouterScore::sigmoid, "moe.expert_bias_rate",
              moe.expert_bias_rate, "needs moe.score = sigmoid: a softmax has balance by moe.aux_loss");
  out.require(!moe.shared_gate || moe.shared_ffn_hidden_size > 0, "moe.shared_gate", "true",
              "needs shared experts: give moe.shared_ffn_hidden_size");
  out.require(!moe.force_balance || moe.replay.empty(), "moe.force_balance", "true",
              "moe.replay gives every token its experts: remove one of the two");
  for (const auto& [given, key] :
       {std::pair{moe.force_balance, "moe.force_balance"}, std::pair{!moe.replay.empty(), "moe.replay"}}) {
    out.require(moe.router_skew == 0 || !given, "moe.router_skew", moe.router_skew,
                str("cannot change the load, as ", key, " gives every token its experts: remove one of the two"));
  }
}

/// Whether each rank of tp routes a share of a microbatch's rows (nn::DispatchRows::share).
bool routes_shares(const RunPlan& plan) {
  return plan.grid.tp > 1 && !plan.sequence_parallel && !grid::has_same_tensor_groups(plan.grid);
}

/// Ranks of tp among which the routed rows of a microbatch are divided.
Index routed_shares(const RunPlan& plan) { return routes_shares(plan) ? plan.grid.tp : plan.row_shares(); }

/// Why ranks of tp share rows, for messages on shares that are not legal.
std::string because_of_shares(const RunPlan& plan) {
  if (plan.sequence_parallel) return "with parallel.sequence_parallel = true";
  if (plan.grid.etp != plan.grid.tp) return str("where parallel.etp = ", plan.grid.etp, " is another");
  return str("where parallel.order = ", plan.grid.order, " has ep before tp");
}

/// The order without shares, if the order is the reason.
std::string order_without_shares(const RunPlan& plan) {
  if (plan.sequence_parallel || plan.grid.etp != plan.grid.tp) return "";
  return str("; with parallel.order = ", grid::tp_first(plan.grid.order), " ranks share no rows");
}

void check_capacity(const RunPlan& plan, Problems& out) {
  const nn::MoeConfig& moe = plan.model.moe;
  if (!moe.has_capacity()) {
    out.require(moe.capacity_factor == 0, "moe.capacity_factor", moe.capacity_factor,
                "needs moe.capacity = drop or pad: without it an expert takes all rows that chose it");
    return;
  }
  out.require(moe.capacity_factor > 0, "moe.capacity_factor", "unset",
              str("must be given with moe.capacity = ",
                  nn::kExpertCapacityNames[static_cast<std::size_t>(moe.capacity)], ", such as 1.25"));
  const Index seq_len = plan.model.seq_len, run = plan.model.capacity_run();
  if (seq_len % run != 0) {
    out.add("moe.capacity_run", run,
            str("must divide model.seq_len = ", seq_len, "; the nearest is ", nearest_divisor(seq_len, run)));
    return;
  }
  const Index shares = routed_shares(plan);
  const Index tokens = plan.train.micro_batch * seq_len, rows = tokens / shares;
  if (tokens % shares != 0 || rows % run == 0) return;
  out.add("moe.capacity_run", run,
          str("a rank routes ", rows, " rows of a microbatch (parallel.tp = ", plan.grid.tp, " ranks share them ",
              because_of_shares(plan), "), which must be whole runs; the nearest value is ",
              nearest_divisor(std::gcd(rows, seq_len), run), order_without_shares(plan)));
}

void check_dispatcher(const RunPlan& plan, Problems& out) {
  if (plan.model.moe.dispatcher != nn::ExpertDispatcher::peer) return;
  const std::string why = why_no_peers(plan);
  const bool needs_peers = plan.graphs.mode == capture::GraphMode::iteration && exchanging_ranks(plan) > 1 &&
                           plan.model.moe.capacity != nn::ExpertCapacity::pad;
  const std::string pads = has_clones(plan) ? "" : "moe.capacity = pad or ";
  out.require(why.empty(), "moe.dispatcher", "peer",
              needs_peers ? str(why, "; or use moe.dispatcher = auto with ", pads, "graphs.mode = none")
                          : why + "; use moe.dispatcher = auto or all_to_all");
}

void check_budget(const RunPlan& plan, Problems& out) {
  const nn::MoeConfig& moe = plan.model.moe;
  const BudgetFacts facts = budget_facts(plan);
  const nn::RankCapacity least = least_rank_capacity(facts);
  if (moe.rank_capacity_factor.is_worst_case() || moe.rank_capacity_factor.thousandths >= least.thousandths) return;
  out.add("moe.rank_capacity_factor", moe.rank_capacity_factor.text(),
          least.thousandths == 1000 && facts.has_clones()
              ? std::string("must be at least 1: clones of experts give each rank its even share of rows or more")
              : str("must be at least parallel.ep / moe.top_k = ", plan.grid.ep, " / ", moe.top_k,
                    ", so that a rank has room for one expert that all tokens choose; the least is ", least.text()));
}

/// "; use moe.echo.slots = 2 or fewer": what fits ops::kMaxGroups.
std::string fewer_slots(Index max) {
  return max > 0 ? str("; use moe.echo.slots = ", max, " or fewer") : "; use moe.echo.slots = 0, or fewer experts";
}

void check_echo(const RunPlan& plan, Problems& out) {
  const nn::MoeConfig& moe = plan.model.moe;
  const nn::EchoConfig& echo = moe.echo;
  const auto name_of_enum = [](const auto& names, auto value) { return names[static_cast<std::size_t>(value)]; };
  out.require(echo.balance != ops::EchoBalance::exact || echo.min_pairs == 0, "moe.echo.min_pairs", echo.min_pairs,
              "must be 0 with moe.echo.balance = exact, whose clones take what evens out the load: remove it");
  if (echo.slots == 0) return;
  out.require(echo.slots <= moe.num_experts, "moe.echo.slots", echo.slots,
              str("must be at most moe.num_experts = ", moe.num_experts));
  const Index max_slots = ops::max_echo_slots(plan.grid.ep, moe.num_experts);
  out.require(plan.grid.ep == 1 || echo.slots <= max_slots, "moe.echo.slots", echo.slots,
              str("times parallel.ep = ", plan.grid.ep, ", plus moe.num_experts = ", moe.num_experts,
                  ", must be at most ", ops::kMaxGroups, fewer_slots(max_slots)));
  out.require(!moe.has_capacity(), "moe.echo.slots", echo.slots,
              str("is for experts that take all rows, and moe.capacity = ",
                  name_of_enum(nn::kExpertCapacityNames, moe.capacity), ": use moe.capacity = none, or slots = 0"));
  out.require(moe.num_experts <= ops::kMaxEchoExperts && plan.grid.ep <= ops::kMaxEchoRanks, "moe.echo.slots",
              echo.slots,
              str("is for at most ", ops::kMaxEchoExperts, " experts and parallel.ep = ", ops::kMaxEchoRanks));
  out.require(plan.grid.etp == 1 || model::row_slices(expert_setting(plan)) == 1, "moe.echo.slots", echo.slots,
              str("parallel.etp = ", plan.grid.etp,
                  ": slots hold the slices of a rank, and its rows must be those of all slices; use parallel.etp = 1, "
                  "or parallel.etp = parallel.tp without parallel.sequence_parallel"));
  const bool is_sent = moe.dispatcher == nn::ExpertDispatcher::all_to_all;
  using enum nn::EchoBackend;
  out.require(!is_sent || echo.backend == automatic || echo.backend == host_sized, "moe.echo.backend",
              name_of_enum(nn::kEchoBackendNames, echo.backend),
              "moe.dispatcher = all_to_all has counts on the host: use moe.echo.backend = host_sized or auto, or "
              "moe.dispatcher = peer");
  if (echo.backend != peer || is_sent || plan.grid.ep == 1) return;
  const std::string why = why_no_peers(plan);
  out.require(why.empty(), "moe.echo.backend", "peer", str(why, "; or use moe.echo.backend = auto"));
}

void check_grid(const RunPlan& plan, Problems& out) {
  const nn::MoeConfig& moe = plan.model.moe;
  const Index ep = plan.grid.ep, etp = plan.grid.etp, tp = plan.grid.tp;
  out.require(moe.num_experts % ep == 0, "parallel.ep", ep,
              str("must divide moe.num_experts = ", moe.num_experts, "; the nearest is ",
                  nearest_divisor(moe.num_experts, ep)));
  out.require(moe.ffn_hidden_size % etp == 0, "parallel.etp", etp,
              str("must divide moe.ffn_hidden_size = ", moe.ffn_hidden_size, "; the nearest is ",
                  nearest_divisor(moe.ffn_hidden_size, etp)));
  out.require(etp * moe.num_experts <= ops::kMaxGroups, "parallel.etp", etp,
              str("times moe.num_experts = ", moe.num_experts, ": must be at most ", ops::kMaxGroups));
  const Index samples = plan.train.micro_batch, seq_len = plan.model.seq_len, tokens = samples * seq_len;
  if (routes_shares(plan))
    out.require(tokens % tp == 0, "train.micro_batch * model.seq_len", tokens,
                str("must be divisible by parallel.tp = ", tp, " ", because_of_shares(plan),
                    ": each rank routes a share of the rows; with this seq_len train.micro_batch = ",
                    round_up(samples, tp / std::gcd(tp, seq_len)), " would do", order_without_shares(plan)));
  out.require(plan.tp_overlap != TpOverlap::halves, "parallel.tp_overlap", "halves",
              "is not built for models with experts: use none or auto");
}

}  // namespace

model::ExpertSetting expert_setting(const RunPlan& plan) {
  const auto sp = plan.sequence_parallel ? nn::SequenceParallel::on : nn::SequenceParallel::off;
  return {plan.device, plan.train.policy().compute, plan.grid, sp};
}

bool has_clones(const RunPlan& plan) { return budget_facts(plan).has_clones(); }

std::string why_no_peers(const RunPlan& plan) {
  std::string why;
  if (plan.device != Device::cpu && plan.transfers != comm::Transport::copy_engines)
    why = "on GPUs ranks read each other's rows with parallel.transfers = copy_engines only";
  const int ranks = exchanging_ranks(plan);
  if (ranks > nn::kMaxPeers)
    why += str(why.empty() ? "" : "; ", "at most ", nn::kMaxPeers,
               " ranks read each other's rows, parallel.ep = ", plan.grid.ep, " and parallel.etp = ", plan.grid.etp,
               " make it ", ranks);
  return why;
}

bool may_read_rows(const RunPlan& plan) {
  return exchanging_ranks(plan) > 1 && plan.model.moe.dispatcher != nn::ExpertDispatcher::all_to_all &&
         why_no_peers(plan).empty();
}

std::string why_no_grouped_gemm(const RunPlan& plan) {
  using enum ops::GroupedKernelFit;
  const Index hidden = plan.model.hidden_size, ffn = plan.model.moe.ffn_hidden_size / plan.grid.etp;
  switch (ops::grouped_kernel_fit(plan.device, plan.train.policy().compute, hidden, ffn)) {
    case on_cpu:
      return "one kernel for all experts is built for GPUs only";
    case wide_numbers:
      return str("its kernel computes in 16 bits, and train.precision = ", plan.train.precision);
    case odd_widths:
      return str("its kernel takes multiples of ", ops::kGroupedKernelWidths, ", and ",
                 hidden % ops::kGroupedKernelWidths != 0 ? str("model.hidden_size = ", hidden)
                                                         : str("moe.ffn_hidden_size / parallel.etp = ", ffn));
    case other_gpu:
      return "its kernel is for Hopper GPUs (compute capability 9.0)";
    case fits:
      break;
  }
  return "";
}

int exchanging_ranks(const RunPlan& plan) {
  return plan.model.moe.has_experts() ? model::exchanging_ranks(expert_setting(plan)) : 1;
}

MoeRows moe_rows(const RunPlan& plan) {
  const Index slices = model::row_slices(expert_setting(plan));
  const nn::MoeConfig& moe = plan.model.moe;
  const Index tokens = plan.train.micro_batch * plan.model.seq_len;
  const Index routed = tokens / routed_shares(plan);
  const Index run = plan.model.capacity_run();
  const Index of_slice = moe.capacity == nn::ExpertCapacity::pad
                             ? moe.num_experts * (routed / run) * moe.capacity_of(run)
                             : routed * moe.top_k;
  return {routed, of_slice * slices};
}

bool BudgetFacts::has_even_loads() const {
  return has_clones() && echo.balance == ops::EchoBalance::exact && echo.slots >= num_experts / ep;
}

BudgetFacts budget_facts(const RunPlan& plan) {
  const nn::MoeConfig& moe = plan.model.moe;
  return {.num_experts = moe.num_experts,
          .top_k = moe.top_k,
          .ep = plan.grid.ep,
          .pairs = plan.train.micro_batch * plan.model.seq_len / routed_shares(plan) * moe.top_k,
          .echo = moe.echo};
}

nn::RankCapacity least_rank_capacity(const BudgetFacts& of) {
  const Index of_one = ceil_div(1000 * of.ep, of.top_k);
  if (!of.has_clones()) return {of_one};
  return {of.has_even_loads() ? 1000 : std::max<Index>(1000, of_one)};
}

nn::RankCapacity usual_rank_capacity(const BudgetFacts& of) {
  const Index least = least_rank_capacity(of).thousandths;
  Index factor = of.has_even_loads() ? least : std::max<Index>(2000, least);
  if (of.has_clones() && !of.has_even_loads()) {
    // What is less than a clone's least part stays home.
    const Index pairs = std::max<Index>(1, of.pairs);
    const Index smallest = 1000 + ceil_div(1000 * std::min(of.echo.min_pairs, pairs), pairs);
    factor = std::min(factor, std::max({Index{1250}, least, smallest}));
  }
  const Index columns = of.num_experts / of.ep + (of.has_clones() ? of.echo.slots : 0);
  const Index worst = 1000 * of.ep * std::min(of.top_k, columns);
  return {factor * of.top_k < worst ? factor : 0};
}

void derive_rank_capacity(RunConfig& c, const grid::ResolvedSizes& grid) {
  RunConfig::Moe& m = c.moe;
  if (!m.num_experts || m.rank_capacity_factor) return;
  const bool has_shares =
      grid.tp > 1 && (c.parallel.sequence_parallel.value_or(false) || !grid::has_same_tensor_groups(grid));
  const Index tokens = c.train.micro_batch.value_or(1) * c.model.seq_len.value_or(1) / (has_shares ? grid.tp : 1);
  BudgetFacts of{.num_experts = *m.num_experts, .top_k = std::max<Index>(1, *m.top_k), .ep = std::max(1, grid.ep)};
  of.pairs = tokens * of.top_k;
  of.echo.slots = *m.echo.slots;
  of.echo.min_pairs = *m.echo.min_pairs;
  if (*m.echo.balance == "exact") of.echo.balance = ops::EchoBalance::exact;
  m.rank_capacity_factor = usual_rank_capacity(of).text();
}

bool limits_rows(const RunPlan& plan) {
  return may_read_rows(plan) && plan.model.moe.capacity != nn::ExpertCapacity::pad;
}

void derive_moe(RunConfig& c, Problems& out) {
  RunConfig::Moe& m = c.moe;
  if (!m.num_experts) return refuse_without_experts(c, out);
  const nn::MoeConfig defaults;
  set_default(m.top_k, defaults.top_k);
  derive_pattern(m, out);
  set_default(m.score, "softmax");
  set_default(m.score_before_top_k, defaults.score_before_top_k);
  set_default(m.normalize_top_k, defaults.normalize_top_k);
  set_default(m.scale, defaults.scale);
  set_default(m.num_groups, defaults.num_groups);
  set_default(m.group_top_k, std::clamp<Index>(*m.num_groups, 1, ops::kMaxRouterGroups));
  set_default(m.expert_bias_rate, defaults.expert_bias_rate);
  set_default(m.aux_loss, *m.expert_bias_rate > 0 ? 0.0 : 0.01);
  set_default(m.aux_scope, "microbatch");
  set_default(m.z_loss, defaults.z_loss);
  set_default(m.shared_ffn_hidden_size, defaults.shared_ffn_hidden_size);
  set_default(m.shared_gate, defaults.shared_gate);
  set_default(m.capacity, "none");
  set_default(m.drop_by, "probability");
  set_default(m.gemm, "auto");
  set_default(m.dispatcher, "auto");
  derive_echo(m.echo);
  derive_budget(c, out);
  set_default(m.force_balance, defaults.force_balance);
  set_default(m.overlap, defaults.overlap);
  set_default(m.router_skew, defaults.router_skew);
}

void check_moe(const RunPlan& plan, Problems& out) {
  if (!plan.model.moe.has_experts()) return;
  check_router(plan.model.moe, out);
  check_pattern(plan.model, out);
  check_capacity(plan, out);
  check_grid(plan, out);
  check_dispatcher(plan, out);
  check_budget(plan, out);
  check_echo(plan, out);
  check_moe_graphs(plan, out);
}

}  // namespace megalith::config
