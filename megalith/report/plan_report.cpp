#include "megalith/report/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/nn/moe/moe.h"
#include "megalith/train/engine.h"
#include "megalith/train/expert_rows.h"

namespace megalith::apps {
namespace {

/// What CUDA, its libraries and NCCL's communicators take of a GPU beside the plan, with some room: 0.5 GiB on one, and
/// 32 to 64 MiB a group of ranks.
constexpr Index kForLibraries = Index{1} << 30;

/// A GPU by the size it is sold by, and the memory that its driver gives out.
struct GpuSize {
  int gb;
  double gib;
  Index room() const { return static_cast<Index>(gib * 0x1p30) - kForLibraries; }
};
constexpr std::array<GpuSize, 2> kGpuSizes = {{{80, 79.1}, {141, 139.8}}};

Index sum_of(const std::vector<BytesByOwner>& ranks) {
  Index sum = 0;
  for (const BytesByOwner& rank : ranks) sum += total(rank);
  return sum;
}

Index of(const BytesByOwner& bytes, const char* owner) {
  const auto found = bytes.find(owner);
  return found == bytes.end() ? 0 : found->second;
}

constexpr std::array kColumns = {"parameters", "gradients", "optimizer", "activations"};

/// A row for all ranks that are equal. Of many such rows those that take most stay. A line below has what the others
/// take at most.
std::string ranks_table(const std::vector<BytesByOwner>& ranks) {
  constexpr std::size_t kMaxRows = 5;
  std::vector<EqualRanks> groups = equal_ranks(ranks);
  std::string left_out;
  if (groups.size() > kMaxRows) {
    std::ranges::stable_sort(groups, std::ranges::greater{}, [](const EqualRanks& one) { return total(*one.bytes); });
    std::size_t others = 0;
    for (std::size_t i = kMaxRows; i < groups.size(); ++i) others += groups[i].ranks.size();
    left_out = str(others, others == 1 ? " rank takes " : " others take ", human_bytes(total(*groups[kMaxRows].bytes)),
                   " or less: --format json lists every rank\n");
    groups.resize(kMaxRows);
    std::ranges::sort(groups, {}, [](const EqualRanks& one) { return one.ranks.front(); });
  }
  std::vector<std::vector<std::string>> rows = {{ranks.size() == 1 ? "rank" : "ranks"}};
  rows[0].insert(rows[0].end(), kColumns.begin(), kColumns.end());
  rows[0].insert(rows[0].end(), {"others", "total"});
  for (const EqualRanks& group : groups) {
    std::vector<std::string>& row = rows.emplace_back(1, stretches(group.ranks));
    Index others = total(*group.bytes);
    for (const char* owner : kColumns) {
      row.push_back(human_bytes(of(*group.bytes, owner)));
      others -= of(*group.bytes, owner);
    }
    row.push_back(human_bytes(others));
    row.push_back(human_bytes(total(*group.bytes)));
  }
  return text_table(rows) + left_out;
}

/// The owners of a rank's bytes, the largest first; what takes nothing is left out.
std::string owners_of(const BytesByOwner& bytes) {
  std::vector<std::pair<Index, std::string>> owners;
  for (const auto& [owner, size] : bytes) owners.emplace_back(size, owner);
  std::ranges::stable_sort(owners, std::ranges::greater{}, &std::pair<Index, std::string>::first);
  std::string text;
  for (const auto& [size, owner] : owners) {
    if (size > 0) text += str(text.empty() ? "" : ", ", owner, ' ', human_bytes(size));
  }
  return text;
}

/// The recomputation that repeats the fewest FLOPs of those with which the largest rank fits; nullptr: none.
const train::RecomputeChoice* recompute_for(const config::RunPlan& plan, const GpuSize& gpu,
                                            const PlannedRanks& planned) {
  const auto found =
      std::ranges::find_if(planned.by_recompute, [&](const BytesByOwner& bytes) { return total(bytes) <= gpu.room(); });
  if (found == planned.by_recompute.end()) return nullptr;
  return &train::recompute_choices(plan)[static_cast<std::size_t>(found - planned.by_recompute.begin())];
}

std::string fit_text(const config::RunPlan& plan, const GpuSize& gpu, const PlannedRanks& planned) {
  const std::size_t largest = planned.largest();
  const Index left = gpu.room() - total(planned.ranks[largest]);
  const train::RecomputeChoice* const recompute = left < 0 ? recompute_for(plan, gpu, planned) : nullptr;
  const auto of_largest = [&](const config::RunPlan& other) {
    return train::planned_bytes(other, static_cast<int>(largest));
  };
  return str(left >= 0 ? "fits" : "does not fit", " a GPU of ", gpu.gb, " GB: ", human_bytes(std::abs(left)),
             left >= 0 ? " left" : " missing", " beside 1 GiB for CUDA and NCCL",
             recompute == nullptr ? "" : "; fits with " + recompute->settings(),
             left < 0 ? train::expert_rows_advice(plan, planned.ranks[largest], of_largest, -left) : "", "\n");
}

/// What each recomputation takes of the rank that takes most, and repeats of a step's FLOPs.
std::string recompute_text(const config::RunPlan& plan, const PlannedRanks& planned) {
  if (planned.by_recompute.empty()) return "";
  const model::ModelSpec spec = model::model_spec(plan.model);
  const double step = 3 * model::forward_flops_per_token(spec);
  const bool has_experts = plan.model.moe.has_experts();
  std::vector<std::vector<std::string>> rows = {{"recompute", "repeated FLOPs", "activations"}};
  if (has_experts) rows[0].emplace_back(nn::Moe::kRowsOwner);
  rows[0].insert(rows[0].end(), {"scratch", "largest rank"});
  for (std::size_t i = 0; i < planned.by_recompute.size(); ++i) {
    const BytesByOwner& bytes = planned.by_recompute[i];
    const train::RecomputeChoice& choice = train::recompute_choices(plan)[i];
    const double repeated = model::repeated_flops_per_token(spec, choice.config) / step;
    rows.push_back({choice.name, str(std::round(1000 * repeated) / 10, " %"), human_bytes(of(bytes, "activations"))});
    if (has_experts) rows.back().push_back(human_bytes(train::expert_rows_in(bytes)));
    rows.back().insert(rows.back().end(), {human_bytes(of(bytes, kScratchOwner)), human_bytes(total(bytes))});
  }
  return text_table(rows);
}

Index microbatches(const config::RunPlan& plan) {
  return plan.train.global_batch / (plan.train.micro_batch * plan.grid.dp);
}

bool is_sharded(const config::RunPlan& plan) { return plan.optimizer.sharding == Sharding::optimizer; }

std::string sharding_text(const config::RunPlan& plan, const PlannedRanks& planned) {
  if (!planned.other_sharding) return "";
  const BytesByOwner& other = *planned.other_sharding;
  return str("optimizer of rank ", planned.largest(), ": ",
             human_bytes(of(planned.ranks[planned.largest()], "optimizer")),
             "; with optimizer.distributed = ", is_sharded(plan) ? "false" : "true", " (dp ", plan.grid.dp, ") ",
             human_bytes(of(other, "optimizer")), ", the rank then ", human_bytes(total(other)), "\n");
}

/// `plan` prices `auto` as `keep`.
nn::EchoWeights clone_weights(const config::RunPlan& plan) {
  const bool redispatches = plan.model.moe.echo.weights == nn::EchoWeights::redispatch;
  return redispatches ? nn::EchoWeights::redispatch : nn::EchoWeights::keep;
}
nn::EchoWeights other_clone_weights(const config::RunPlan& plan) {
  return clone_weights(plan) == nn::EchoWeights::keep ? nn::EchoWeights::redispatch : nn::EchoWeights::keep;
}
std::string_view name_of(nn::EchoWeights weights) { return nn::kEchoWeightsNames[static_cast<std::size_t>(weights)]; }

/// The bytes of the largest rank that one slot of clones takes: its weights, which all microbatches in flight have, or
/// one layer, and its gradients, which one layer has.
Index slot_bytes(const PlannedRanks& planned) {
  return total(planned.ranks[planned.largest()]) - total(planned.slots->one_less);
}

std::string slots_text(const config::RunPlan& plan, const PlannedRanks& planned) {
  if (!planned.slots) return "";
  const Index slots = plan.model.moe.echo.slots;
  return str("clones of experts: moe.echo.slots = ", slots, "; a slot takes ", human_bytes(slot_bytes(planned)),
             " of rank ", planned.largest(), " (moe.echo.weights = ", name_of(clone_weights(plan)), "); with ",
             name_of(other_clone_weights(plan)), " the rank takes ", human_bytes(total(planned.slots->other_weights)),
             "\n");
}

PlannedRanks::Slots other_slots(const config::RunPlan& plan, int rank) {
  config::RunPlan less = plan, other = plan;
  --less.model.moe.echo.slots;
  other.model.moe.echo.weights = other_clone_weights(plan);
  return {.one_less = train::planned_bytes(less, rank), .other_weights = train::planned_bytes(other, rank)};
}

Index gradients_in(const BytesByOwner& bytes) { return of(bytes, "gradients") + of(bytes, kGradWindowsOwner); }

/// What gradients take and their sums send, with both settings of optimizer.shard.
std::string shard_text(const config::RunPlan& plan, const PlannedRanks& planned) {
  if (planned.by_shard.empty()) return "";
  const auto now = static_cast<std::size_t>(plan.optimizer.shard), other = 1 - now;
  const train::RankCost &is = planned.by_shard[now], &would_be = planned.by_shard[other];
  return str("gradients of rank ", planned.largest(), ": ", human_bytes(gradients_in(is.bytes)), ", sums over dp send ",
             human_bytes(is.sums_sent), " a step; with optimizer.shard = ", kShardedStateNames.at(other), " ",
             human_bytes(gradients_in(would_be.bytes)), ", sums send ", human_bytes(would_be.sums_sent),
             ", the rank then ", human_bytes(total(would_be.bytes)), "\n");
}

/// What the ranks of each pipeline stage take: they are alike.
std::vector<BytesByOwner> bytes_by_stage(const config::RunPlan& plan, const grid::RankGenerator& grid) {
  std::vector<BytesByOwner> stages;
  for (int stage = 0; stage < plan.grid.pp; ++stage)
    stages.push_back(train::planned_bytes(plan, grid.rank({.pp = stage})));
  return stages;
}

/// The layers and tables that a stage holds: stages of one text differ in the number of activation slots and message
/// buffers only.
std::string content_of(const config::RunPlan& plan, const grid::LayerAssignment& layers, int stage) {
  std::string text = stage == 0 ? "embedding" : stage + 1 == plan.grid.pp ? "head" : "";
  for (int chunk = 0; chunk < plan.chunks; ++chunk) {
    text += '|';
    const grid::LayerRange range = layers.at(stage, chunk);
    for (Index layer = range.begin; layer < range.end; ++layer) text += plan.model.moe.is_moe_layer(layer) ? 'm' : 'd';
  }
  return text;
}

/// The stages of which one takes most under every recomputation: of those of one content the one with the most slots
/// and buffers, as their numbers do not depend on recomputation.
std::vector<int> largest_stages(const config::RunPlan& plan, const std::vector<BytesByOwner>& stages) {
  const auto layers = grid::LayerAssignment::of(plan.model.num_layers, plan.grid.pp, plan.chunks, plan.stage_layers);
  std::map<std::string, int> largest;
  for (int stage = 0; stage < plan.grid.pp; ++stage) {
    const auto [found, is_new] = largest.try_emplace(content_of(plan, layers, stage), stage);
    if (total(stages[static_cast<std::size_t>(stage)]) > total(stages[static_cast<std::size_t>(found->second)]))
      found->second = stage;
  }
  std::vector<int> all;
  for (const auto& [content, stage] : largest) all.push_back(stage);
  std::ranges::sort(all);
  return all;
}

/// What a rank of the stage that takes most takes.
BytesByOwner largest_of(const config::RunPlan& plan, const grid::RankGenerator& grid, const std::vector<int>& stages) {
  BytesByOwner largest;
  for (const int stage : stages) {
    BytesByOwner bytes = train::planned_bytes(plan, grid.rank({.pp = stage}));
    if (total(bytes) > total(largest)) largest = std::move(bytes);
  }
  return largest;
}

std::vector<BytesByOwner> spread_over_ranks(const std::vector<BytesByOwner>& stages, const grid::RankGenerator& grid) {
  std::vector<BytesByOwner> ranks;
  for (int rank = 0; rank < grid.world_size(); ++rank)
    ranks.push_back(stages[static_cast<std::size_t>(grid.coordinates(rank).pp)]);
  return ranks;
}

}  // namespace

std::vector<EqualRanks> equal_ranks(const std::vector<BytesByOwner>& ranks) {
  std::vector<EqualRanks> all;
  std::map<BytesByOwner, std::size_t> places;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [place, is_new] = places.try_emplace(ranks[rank], all.size());
    if (is_new) all.push_back({{}, &ranks[rank]});
    all[place->second].ranks.push_back(static_cast<int>(rank));
  }
  return all;
}

std::size_t PlannedRanks::largest() const {
  std::vector<Index> totals;
  for (const BytesByOwner& bytes : ranks) totals.push_back(total(bytes));
  return static_cast<std::size_t>(std::ranges::max_element(totals) - totals.begin());
}

std::vector<BytesByOwner> plan_each_rank(const config::RunPlan& plan) {
  const grid::RankGenerator grid = grid::dense_grid(plan.grid);
  return spread_over_ranks(bytes_by_stage(plan, grid), grid);
}

PlannedRanks plan_ranks(const config::RunPlan& plan) {
  const grid::RankGenerator grid = grid::dense_grid(plan.grid);
  const std::vector<BytesByOwner> stages = bytes_by_stage(plan, grid);
  const std::vector<int> candidates = largest_stages(plan, stages);
  PlannedRanks planned{.ranks = spread_over_ranks(stages, grid)};
  for (const train::RecomputeChoice& choice : train::recompute_choices(plan))
    planned.by_recompute.push_back(largest_of(train::with_recompute(plan, choice.config), grid, candidates));
  const auto largest = static_cast<int>(planned.largest());
  if (plan.model.moe.echo.slots > 0) planned.slots = other_slots(plan, largest);
  if (plan.grid.dp * plan.grid.cp == 1) return planned;
  config::RunPlan other = plan;
  other.optimizer.sharding = is_sharded(plan) ? Sharding::none : Sharding::optimizer;
  planned.other_sharding = train::planned_bytes(other, largest);
  if (!is_sharded(plan) || plan.optimizer.type == optim::OptimizerType::muon) return planned;
  for (const ShardedState shard : {ShardedState::moments, ShardedState::gradients}) {
    other = plan;
    other.optimizer.shard = shard;
    planned.by_shard.push_back(train::planned_cost(other, largest));
  }
  return planned;
}

std::string plan_text(const config::RunPlan& plan, const PlannedRanks& planned) {
  const BytesByOwner& largest = planned.ranks[planned.largest()];
  const Index count = microbatches(plan), world_size = plan.grid.world_size;
  std::string text = str("grid ", config::grid_text(plan), ", ", world_size, world_size == 1 ? " rank, " : " ranks, ",
                         model::parameters_text(plan.model), ", ", plan.train.precision, "\n");
  text += str(count, count == 1 ? " microbatch" : " microbatches", " a step: global_batch ", plan.train.global_batch,
              " = ", count, " x micro_batch ", plan.train.micro_batch, " x dp ", plan.grid.dp, "\n");
  if (plan.train.ramp) {
    const config::BatchRamp::Length length = plan.train.ramp->length();
    text += str("batch ramp: ", plan.train.ramp->start, " to ", plan.train.ramp->end, " samples a step, in ",
                length.steps, " steps with ", length.samples, " samples in all\n");
  }
  if (plan.train.steps > 0) text += str("learning rate: ", optim::curve_text(plan.optimizer), "\n");
  text += "\n";
  text += ranks_table(planned.ranks) + "\n";
  text += str("largest: rank ", planned.largest(), ", ", human_bytes(total(largest)), ": ", owners_of(largest), "\n");
  if (world_size > 1) text += str("sum of all ranks: ", human_bytes(sum_of(planned.ranks)), "\n");
  text += sharding_text(plan, planned);
  text += shard_text(plan, planned);
  text += slots_text(plan, planned);
  text += recompute_text(plan, planned);
  for (const GpuSize& gpu : kGpuSizes) text += fit_text(plan, gpu, planned);
  if (plan.device == Device::cpu) text += "planned for device.type = cpu: --set device.type=cuda plans for GPUs\n";
  for (const std::string& owner : train::measured_owners(plan))
    text += str("not included: ", owner, ", which a run measures when it starts\n");
  return text;
}

std::string plan_json(const config::RunPlan& plan, const PlannedRanks& planned) {
  const Index largest = total(planned.ranks[planned.largest()]);
  nlohmann::ordered_json out = {{"grid", config::grid_text(plan)},
                                {"parameters", model::count_parameters(plan.model) - model::count_padding(plan.model)},
                                {"padding", model::count_padding(plan.model)},
                                {"precision", plan.train.precision},
                                {"microbatches", microbatches(plan)},
                                {"largest", {{"rank", planned.largest()}, {"total", largest}}},
                                {"sum", sum_of(planned.ranks)}};
  for (const GpuSize& gpu : kGpuSizes) out["fits"].push_back({{"gb", gpu.gb}, {"left", gpu.room() - largest}});
  if (planned.other_sharding) {
    out["other_sharding"] = {{"optimizer.distributed", !is_sharded(plan)},
                             {"optimizer", of(*planned.other_sharding, "optimizer")},
                             {"total", total(*planned.other_sharding)}};
  }
  for (std::size_t shard = 0; shard < planned.by_shard.size(); ++shard) {
    const train::RankCost& cost = planned.by_shard[shard];
    out["shard"].push_back({{"optimizer.shard", kShardedStateNames.at(shard)},
                            {"gradients", gradients_in(cost.bytes)},
                            {"sums_sent", cost.sums_sent},
                            {"total", total(cost.bytes)}});
  }
  if (planned.slots) {
    out["echo"] = {{"slots", plan.model.moe.echo.slots},
                   {"weights", name_of(clone_weights(plan))},
                   {"bytes_per_slot", slot_bytes(planned)},
                   {str("total_with_", name_of(other_clone_weights(plan))), total(planned.slots->other_weights)}};
  }
  for (std::size_t i = 0; i < planned.by_recompute.size(); ++i) {
    const BytesByOwner& bytes = planned.by_recompute[i];
    out["recompute"].push_back({{"recompute", train::recompute_choices(plan)[i].name},
                                {"activations", of(bytes, "activations")},
                                {"expert_rows", train::expert_rows_in(bytes)},
                                {"total", total(bytes)}});
  }
  for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
    nlohmann::ordered_json row = {{"rank", rank}};
    for (const auto& [owner, bytes] : planned.ranks[rank]) row["bytes"][owner] = bytes;
    row["total"] = total(planned.ranks[rank]);
    out["ranks"].push_back(std::move(row));
  }
  out["not_included"] = train::measured_owners(plan);
  return out.dump(2) + "\n";
}

}  // namespace megalith::apps
