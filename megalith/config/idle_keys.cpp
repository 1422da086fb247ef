#include "megalith/config/idle_keys.h"

#include <algorithm>
#include <array>

#include "megalith/base/str.h"
#include "megalith/config/keys.h"
#include "megalith/config/moe_rules.h"

namespace megalith::config {
namespace {

struct IdleKey {
  std::string_view key;
  bool is_idle;
  std::string_view because;
};

std::vector<IdleKey> idle_of(const RunPlan& plan) {
  const model::ModelConfig& m = plan.model;
  const model::ModelConfig defaults;  // recipes of checkpoints have every key: those of `rope` with these values
  const bool no_capacity = m.moe.has_experts() && !m.moe.has_capacity(), no_rope = !m.has_rope();
  const bool no_scaling = m.rope_scaling == ops::RopeScaling::none,
             no_llama3 = m.rope_scaling != ops::RopeScaling::llama3;
  constexpr std::string_view kCapacity = "moe.capacity = none", kPosition = "model.position = learned",
                             kLlama3 = "a model.rope_scaling other than llama3";
  const bool no_echo = m.moe.has_experts() && m.moe.echo.slots == 0;
  constexpr std::string_view kNoEcho = "moe.echo.slots = 0";
  constexpr std::string_view kNoMlps = "experts in every layer and no shared ones: no activation of theirs is kept";
  constexpr std::string_view kPads = "moe.capacity = pad, which makes the rows constants";
  const bool pads = m.moe.has_experts() && m.moe.capacity == nn::ExpertCapacity::pad;
  constexpr std::string_view kNoExchange = "ranks that exchange no rows of experts: they keep none";
  const bool is_sent = exchanging_ranks(plan) > 1 && !may_read_rows(plan);
  const bool has_many = exchanging_ranks(plan) > nn::kMaxPeers;
  const std::string_view sent = m.moe.dispatcher == nn::ExpertDispatcher::all_to_all ? "moe.dispatcher = all_to_all"
                                : has_many ? "more than 8 ranks that exchange rows of experts: they send them"
                                           : "parallel.transfers = kernels, where ranks send rows of experts";
  static_assert(nn::kMaxPeers == 8);
  const bool is_sent_by_auto = is_sent && m.moe.dispatcher == nn::ExpertDispatcher::automatic;
  const auto is_only = [&](nn::RecomputeModule module) {
    return std::ranges::equal(plan.recompute.modules(), std::array{name(module)});
  };
  const capture::GraphsConfig usual;
  const bool no_graphs = plan.graphs.mode == capture::GraphMode::none;
  const optim::OptimConfig& o = plan.optimizer;
  const bool no_decay_steps =
      !optim::reads_decay_steps(o.decay) &&
      o.decay_steps != optim::default_decay_steps(o.decay, o.warmup_steps, plan.train.steps);  // of a resolved recipe
  const bool no_fp8 = plan.train.policy().gemms != GemmFormat::e4m3;
  constexpr std::string_view kNoFp8 = "a train.precision other than fp8";
  const TrainConfig& t = plan.train;
  const bool no_spikes = !t.spikes.is_on(), is_scaled = t.scaling.is_on();
  const bool no_skips = !is_scaled && t.on_nonfinite == ops::NonFinite::stop && !t.spikes.skips();
  constexpr std::string_view kNoSpikes = "train.spike_loss = 0 and train.spike_norm = 0";
  constexpr std::string_view kGraphs = "graphs.mode = none";
  const bool is_chat = plan.data.format == data::DataFormat::chat;
  return {{"data.key", is_chat && plan.data.key != data::DataConfig().key, "data.format = chat"},
          {"data.attend_across_documents", is_chat && !plan.data.attend_across_documents, "data.format = chat"},
          {"data.chat_packing", !is_chat && !plan.data.chat_packing, "data.format = text"},
          {"data.chat_too_long", !is_chat && plan.data.chat_too_long != data::ChatTooLong::cut, "data.format = text"},
          {"fp8.experts", (no_fp8 || !plan.model.moe.has_experts()) && plan.fp8.experts != nn::Fp8Experts::wide,
           no_fp8 ? kNoFp8 : "moe.num_experts = 0"},
          {"fp8.skip_layers", no_fp8 && plan.fp8.skip_layers != nn::Fp8Skip::none, kNoFp8},
          {"fp8.head", no_fp8 && plan.fp8.head, kNoFp8},
          {"fp8.weight_grad", no_fp8 && plan.fp8.weight_grad, kNoFp8},
          {"graphs.check", no_graphs && plan.graphs.check_steps != usual.check_steps, kGraphs},
          {"graphs.optimizer", no_graphs && plan.graphs.optimizer, kGraphs},
          {"graphs.per", no_graphs && plan.graphs.per != usual.per, kGraphs},
          {"graphs.scopes", no_graphs && !plan.graphs.scopes.empty(), kGraphs},
          {"graphs.warmup_steps", no_graphs && plan.graphs.warmup_steps != usual.warmup_steps, kGraphs},
          {"optimizer.muon_momentum", o.type != optim::OptimizerType::muon, "optimizer.type = adamw"},
          {"optimizer.muon_scale", o.type != optim::OptimizerType::muon, "optimizer.type = adamw"},
          {"optimizer.shard", o.sharding == Sharding::none && o.shard == ShardedState::gradients,
           "optimizer.distributed = false"},
          {"optimizer.decay_steps", no_decay_steps, "an optimizer.decay that has no end"},
          {"train.early_stop_delta", plan.train.early_stop == 0 && plan.train.early_stop_delta != 0,
           "train.early_stop = 0"},
          {"train.on_nonfinite", is_scaled && t.on_nonfinite == ops::NonFinite::skip,
           "train.precision = fp16, which always skips"},
          {"train.skip_limit", no_skips && t.skip_limit != TrainConfig().skip_limit, "settings that skip no step"},
          {"train.spike_window", no_spikes && t.spikes.window != ops::SpikeRules().window, kNoSpikes},
          {"train.on_spike", no_spikes && t.spikes.on_spike != ops::OnSpike::report, kNoSpikes},
          {"moe.capacity_run", no_capacity, kCapacity},
          {"moe.drop_by", no_capacity, kCapacity},
          {"recompute.modules", is_only(nn::RecomputeModule::gelu) && !m.has_mlps(), kNoMlps},
          {"recompute.modules", is_only(nn::RecomputeModule::dispatch) && exchanging_ranks(plan) == 1, kNoExchange},
          {"moe.rank_capacity_factor", exchanging_ranks(plan) == 1, kNoExchange},
          {"moe.overflow", exchanging_ranks(plan) == 1, kNoExchange},
          {"moe.overlap", m.moe.overlap && exchanging_ranks(plan) == 1, kNoExchange},
          {"moe.rank_capacity_factor", pads && exchanging_ranks(plan) > 1, kPads},
          {"moe.overflow", pads && exchanging_ranks(plan) > 1, kPads},
          {"moe.rank_capacity_factor", is_sent_by_auto && !pads, sent},
          {"moe.overflow", is_sent_by_auto && !pads, sent},
          {"moe.overlap", m.moe.overlap && is_sent, sent},
          {"moe.echo.slots", m.moe.echo.slots > 0 && plan.grid.ep == 1, "parallel.ep = 1"},
          {"moe.echo.min_pairs", no_echo, kNoEcho},
          {"moe.echo.balance", no_echo, kNoEcho},
          {"moe.echo.weights", no_echo, kNoEcho},
          {"moe.echo.backend", no_echo, kNoEcho},
          {"moe.echo.overlap", no_echo, kNoEcho},
          {"moe.echo.check_plan", no_echo, kNoEcho},
          {"model.rope_theta", no_rope, kPosition},
          {"model.rope_scaling", no_rope, kPosition},
          {"model.rope_factor", no_rope, kPosition},
          {"model.rope_low_freq_factor", no_rope, kPosition},
          {"model.rope_high_freq_factor", no_rope, kPosition},
          {"model.rope_original_seq_len", no_rope, kPosition},
          {"model.rope_factor", !no_rope && no_scaling && m.rope_factor != defaults.rope_factor,
           "model.rope_scaling = none"},
          {"model.rope_low_freq_factor",
           !no_rope && no_llama3 && m.rope_low_freq_factor != defaults.rope_low_freq_factor, kLlama3},
          {"model.rope_high_freq_factor",
           !no_rope && no_llama3 && m.rope_high_freq_factor != defaults.rope_high_freq_factor, kLlama3},
          {"model.rope_original_seq_len",
           !no_rope && no_llama3 && m.rope_original_seq_len != defaults.rope_original_seq_len, kLlama3}};
}

}  // namespace

std::vector<std::string> idle_keys(RunConfig asked, const RunPlan& plan) {
  std::vector<std::string> warnings;
  for (const IdleKey& row : idle_of(plan)) {
    const AskedValue value = find_key(row.key)->members.asked(asked);
    const bool is_given = std::visit([](const auto* place) { return place->has_value(); }, value);
    if (row.is_idle && is_given)
      warnings.push_back(str(row.key, " = ", value_text(value), ": does nothing with ", row.because));
  }
  return warnings;
}

}  // namespace megalith::config
