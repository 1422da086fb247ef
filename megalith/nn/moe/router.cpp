#include "megalith/nn/moe/router.h"

#include <algorithm>

#include "megalith/nn/moe/wide_logits.h"
#include "megalith/ops/expert_choices.h"
#include "megalith/ops/expert_load.h"

namespace megalith::nn {
namespace {

/// What shares become in whole numbers.
constexpr double kCountOfAll = 0x1p40;

/// A parameter about all tokens, the same on every rank.
ParamSpec by_rule(std::string name, Index size, const ExpertParallel& experts) {
  ParamSpec spec{TensorSlice::whole(std::move(name), {size}), {size}, Init::zeros, 0, Decay::no};
  spec.placement = experts.rows_placement();
  spec.update = Update::by_rule;
  return spec;
}

}  // namespace

std::array<RouterState, 2> router_states(const MoeConfig& config) {
  return {{{".moe.router.bias", "expert biases", config.has_expert_bias()},
           {".moe.router.shares", "counts of the step before, for the global load loss,", config.keeps_shares()}}};
}

void Router::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                     const StreamSpec& stream, const ExpertParallel& experts) {
  const Index num_experts = spec.config.num_experts;
  ParamSpec weight{TensorSlice::whole(name + ".weight", {num_experts, stream.hidden_size}),
                   {num_experts, stream.hidden_size},
                   Init::normal,
                   stream.init_std};
  weight.placement = experts.rows_placement();
  weight.first_grad = FirstGrad::overwritten;
  weight.matrices = {{1, 1, 0}};
  specs.push_back(std::move(weight));
  if (spec.config.has_expert_bias()) specs.push_back(by_rule(name + ".bias", num_experts, experts));
  if (spec.config.keeps_shares()) specs.push_back(by_rule(name + ".shares", num_experts, experts));
}

Router::Router(const std::string& name, const MoeSpec& spec, const LayerGroups& groups, ParamSet& params)
    : config_(spec.config),
      capacity_run_(spec.capacity_run),
      layer_(spec.moe_layer),
      groups_(groups),
      weight_(params.at(name + ".weight")),
      bias_(params.find(name + ".bias")),
      shares_(params.find(name + ".shares")) {}

Router::Runs Router::runs_of(const Microbatch& microbatch) const {
  if (config_.aux_scope != AuxScope::sequence || config_.aux_loss == 0) return {{}, 1, microbatch.tokens()};
  return {{microbatch.seq_len, groups_.experts->first_row(microbatch.tokens())}, microbatch.batch, microbatch.seq_len};
}

ops::LoadLossFactors Router::factors(const Runs& runs) const {
  const auto tokens = static_cast<double>(runs.tokens);
  const double counted = config_.keeps_shares() ? kCountOfAll / static_cast<double>(config_.top_k) : tokens;
  return {.top_k = config_.top_k, .counted_tokens = counted, .tokens = tokens, .weight = config_.aux_loss * tokens};
}

void Router::forward(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  saved.logits = wide_logits(ex, saved.x, weight_);
  if (config_.router_skew != 0) ops::skew_logits(ex, saved.logits, config_.router_skew);
  const Runs runs = runs_of(microbatch);
  choose(ex, microbatch, runs, saved);
  saved.kept = saved.experts;
  if (microbatch.mode == Mode::evaluate) return;
  if (counts(microbatch)) ops::add_counts(ex, saved.counts, microbatch.moe->totals.choices(layer_));
  add_losses(ex, microbatch, runs, saved);
  if (config_.has_capacity()) drop(ex, microbatch, saved);
  if (counts(microbatch)) microbatch.moe->decisions->record(ex, rows_of(microbatch), saved.experts, saved.kept);
}

void Router::choose(Exec& ex, const Microbatch& microbatch, const Runs& runs, Saved& saved) const {
  const Index rows = saved.x.dim(0);
  const DType wide = saved.logits.dtype();
  saved.probabilities = ex.tensor(saved.logits.shape(), wide);
  saved.experts = ex.tensor({rows, config_.top_k}, DType::i32);
  saved.weights = ex.tensor({rows, config_.top_k}, wide);
  saved.counts = ex.tensor({runs.count, config_.num_experts}, DType::i64);
  if (!config_.replay.empty()) saved.stays = ex.tensor({rows, config_.top_k}, wide);
  if (is_even(microbatch)) {
    const ops::EvenChoices choices{.experts = saved.experts,
                                   .num_experts = config_.num_experts,
                                   .first_row = groups_.experts->first_row(microbatch.tokens())};
    if (config_.force_balance)
      ops::even_choices(ex, choices);
    else
      ops::even_choices_unplanned(ex, choices);
  }
  const bool replayed = replays(microbatch);
  if (replayed) microbatch.moe->decisions->replay(ex, rows_of(microbatch), saved.experts, saved.stays);
  ops::router_forward(
      ex, {.logits = saved.logits,
           .bias = bias_ == nullptr ? Tensor() : bias_->value,
           .probabilities = saved.probabilities,
           .experts = saved.experts,
           .weights = saved.weights,
           .counts = saved.counts,
           .rules = config_.rules(),
           .runs = runs.runs,
           .choice = is_even(microbatch) || replayed ? ops::RouterChoice::given : ops::RouterChoice::by_score});
}

RoutedRows Router::rows_of(const Microbatch& microbatch) const {
  return {.moe_layer = layer_,
          .first_row = groups_.experts->first_row(microbatch.tokens()),
          .seq_len = microbatch.seq_len,
          .step_state = microbatch.step_state};
}

void Router::drop(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  saved.kept = ex.tensor_like(saved.experts);
  const bool replayed = replays(microbatch);
  ops::drop_pairs(ex, {.experts = saved.experts,
                       .weights = replayed ? saved.stays : saved.weights,
                       .kept = saved.kept,
                       .num_experts = config_.num_experts,
                       .capacity = config_.capacity_of(capacity_run_),
                       .run = capacity_run_,
                       .by = replayed ? ops::DropBy::probability : config_.drop_by});
  if (counts(microbatch)) ops::count_dropped(ex, saved.kept, microbatch.moe->totals.dropped(layer_));
}

void Router::add_losses(Exec& ex, const Microbatch& microbatch, const Runs& runs, Saved& saved) const {
  if (config_.z_loss > 0 && counts(microbatch))
    ops::z_loss(ex, {.logits = saved.logits, .loss = microbatch.moe->totals.z_loss(layer_), .weight = config_.z_loss});
  if (config_.aux_loss == 0) return;
  const bool global = config_.keeps_shares();
  if (global) {
    saved.counts = ex.tensor({1, config_.num_experts}, DType::i64);
    ops::counts_of_shares(ex, shares_->value, saved.counts, kCountOfAll);
  } else if (shares_rows()) {
    comm::all_reduce(ex, groups_.tp.group(), saved.counts, comm::Reduce::sum).wait(ex);
  }
  if (microbatch.pass == ForwardPass::recompute) return;
  const Tensor sums = ex.tensor({runs.count, config_.num_experts}, saved.probabilities.dtype());
  ops::sum_probabilities(
      ex, {.probabilities = saved.probabilities, .sums = sums, .score = config_.score, .runs = runs.runs});
  if (shares_rows() && !global) comm::all_reduce(ex, groups_.tp.group(), sums, comm::Reduce::sum).wait(ex);
  const bool is_part = global && shares_rows();  // others are sums over tp, the same on its ranks
  if (!is_part && groups_.tp.group().rank() != 0) return;
  ops::load_loss(ex, {.counts = saved.counts,
                      .sums = sums,
                      .loss = microbatch.moe->totals.load_loss(layer_),
                      .factors = factors(runs)});
}

Tensor Router::load_loss_grad(Exec& ex, const Microbatch& microbatch, const Saved& saved) const {
  if (config_.aux_loss == 0) return {};
  const Runs runs = runs_of(microbatch);
  const Tensor d_probabilities = ex.tensor_like(saved.probabilities);
  ops::load_loss_backward(ex, {.counts = saved.counts,
                               .probabilities = saved.probabilities,
                               .step_state = microbatch.step_state,
                               .d_probabilities = d_probabilities,
                               .factors = factors(runs),
                               .score = config_.score,
                               .runs = runs.runs});
  return d_probabilities;
}

void Router::backward(Exec& ex, const Microbatch& microbatch, const Tensor& d_weights, const Tensor& dx,
                      const Saved& saved) const {
  if (groups_.experts->rows() == DispatchRows::replicated)
    comm::all_reduce(ex, groups_.tp.group(), d_weights, comm::Reduce::sum).wait(ex);
  const Tensor d_probabilities = load_loss_grad(ex, microbatch, saved);
  const Tensor d_logits = d_probabilities ? d_probabilities : ex.tensor_like(saved.logits);
  ops::router_backward(ex, {.logits = saved.logits,
                            .probabilities = saved.probabilities,
                            .experts = saved.experts,
                            .d_weights = d_weights,
                            .d_probabilities = d_probabilities,
                            .d_logits = d_logits,
                            .rules = config_.rules()});
  if (config_.z_loss > 0) {
    ops::z_loss_backward(
        ex,
        {.logits = saved.logits, .step_state = microbatch.step_state, .d_logits = d_logits, .weight = config_.z_loss});
  }
  wide_logits_backward(ex, {d_logits, saved.x, dx, microbatch.weight_grads}, weight_);
}

}  // namespace megalith::nn
