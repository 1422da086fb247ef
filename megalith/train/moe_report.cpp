#include "megalith/train/moe_report.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/grid/layer_assignment.h"

namespace megalith::train {
namespace {

ExpertLoad load_of(Index layer, const std::int64_t* counts, Index experts) {
  ExpertLoad load;
  load.layer = layer;
  load.choices = std::accumulate(counts, counts + experts, Index{0});
  load.empty = std::count(counts, counts + experts, 0);
  load.dropped = counts[experts];
  std::vector<Index> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), Index{0});
  std::ranges::stable_sort(order, std::greater<>{}, [&](Index e) { return counts[e]; });
  if (load.choices == 0) return load;
  const double mean = static_cast<double>(load.choices) / static_cast<double>(experts);
  const auto over_mean = [&](Index position) {
    return static_cast<double>(counts[order[static_cast<std::size_t>(position)]]) / mean;
  };
  load.max_over_mean = over_mean(0);
  load.p95_over_mean = over_mean(experts - std::max<Index>(1, ceil_div(experts * 95, 100)));
  for (Index position = 0; position < std::min<Index>(3, experts); ++position) {
    const Index e = order[static_cast<std::size_t>(position)];
    load.hottest.emplace_back(e, static_cast<double>(counts[e]) / static_cast<double>(load.choices));
  }
  return load;
}

/// Nothing where no rank has planned: of one rank.
std::optional<EchoLoad> echo_of(const double* totals) {
  const auto total = [&](ops::EchoTotal which) { return totals[static_cast<std::size_t>(which)]; };
  const auto count = [&](ops::EchoTotal which) { return static_cast<Index>(total(which)); };
  if (total(ops::EchoTotal::plans) == 0) return std::nullopt;
  EchoLoad load{.moved = count(ops::EchoTotal::moved),
                .clones = count(ops::EchoTotal::clones),
                .dropped = count(ops::EchoTotal::dropped)};
  if (const double mean = total(ops::EchoTotal::mean_load); mean > 0) {
    load.before = total(ops::EchoTotal::load_before) / mean;
    load.after = total(ops::EchoTotal::load_after) / mean;
  }
  const double* const wanted = totals + static_cast<std::size_t>(ops::EchoTotal::wanted);
  for (Index slots = 0; slots <= ops::kMaxEchoSlots + 1; ++slots) {
    if (wanted[slots] > 0) load.wanted = slots;
  }
  return load;
}

/// Whether a second forward pass of the layer comes before its backward pass.
bool is_recomputed(const config::RunPlan& plan, Index layer) {
  const nn::RecomputeConfig& recompute = plan.recompute;
  if (recompute.mode != nn::RecomputeMode::full) return false;
  if (recompute.method == nn::RecomputeMethod::uniform) return true;
  const auto stages = grid::LayerAssignment::of(plan.model.num_layers, plan.grid.pp, plan.chunks, plan.stage_layers);
  return std::ranges::any_of(stages.stages(), [&](const grid::LayerRange& of) {
    return of.begin <= layer && layer < of.end && layer - of.begin < recompute.layers;
  });
}

std::string json_of(const EchoLoad& load) {
  return str("{\"before\":", exact(load.before), ",\"after\":", exact(load.after), ",\"moved\":", load.moved,
             ",\"clones\":", load.clones, ",\"wanted\":", load.wanted, ",\"dropped\":", load.dropped,
             ",\"bytes\":", exact(load.bytes), ",\"exposed_us\":", exact(load.exposed_us), '}');
}

std::string json_of(const ExpertLoad& load, bool has_bias) {
  std::string hottest;
  for (const auto& [expert, share] : load.hottest)
    hottest += str(hottest.empty() ? "" : ",", '[', expert, ',', exact(share), ']');
  std::string text = str("{\"layer\":", load.layer, ",\"max_over_mean\":", exact(load.max_over_mean),
                         ",\"p95_over_mean\":", exact(load.p95_over_mean), ",\"hottest\":[", hottest,
                         "],\"empty\":", load.empty, ",\"choices\":", load.choices, ",\"dropped\":", load.dropped);
  if (has_bias) text += str(",\"bias\":[", exact(load.bias_min), ',', exact(load.bias_max), ']');
  if (load.echo) text += ",\"echo\":" + json_of(*load.echo);
  return text + "}";
}

}  // namespace

double clone_bytes(const config::RunPlan& plan, Index layer) {
  const nn::MoeConfig& moe = plan.model.moe;
  const double matrices = plan.model.activation == nn::Activation::swiglu ? 3 : 2;
  // With slices each of them moves, between other ranks.
  const double weights = matrices * static_cast<double>(plan.model.hidden_size * moe.ffn_hidden_size);
  const Policy policy = plan.train.policy();
  const double ways =
      1 + (moe.echo.weights == nn::EchoWeights::redispatch ? 1 : 0) + (is_recomputed(plan, layer) ? 1 : 0);
  return weights * (ways * static_cast<double>(size_of(policy.compute)) + static_cast<double>(size_of(policy.master)));
}

const ExpertLoad& MoeReport::worst() const { return *std::ranges::max_element(layers, {}, &ExpertLoad::max_over_mean); }

std::optional<MoeReport::RankLoads> MoeReport::worst_ranks() const {
  std::optional<RankLoads> worst;
  for (const ExpertLoad& load : layers) {
    if (!load.echo) continue;
    if (!worst) worst.emplace();
    worst->before = std::max(worst->before, load.echo->before);
    worst->after = std::max(worst->after, load.echo->after);
  }
  return worst;
}

std::string MoeReport::json() const {
  std::string all;
  for (const ExpertLoad& load : layers) all += (all.empty() ? "" : ",") + json_of(load, has_bias);
  return str("{\"layers\":[", all, "],\"aux_loss\":", exact(aux_loss), ",\"z_loss\":", exact(z_loss), "}");
}

MoeReport moe_report(const nn::MoeTotals& totals, const std::vector<Index>& layers, double tokens, bool has_bias) {
  MoeReport report;
  report.has_bias = has_bias;
  const Index experts = totals.num_experts();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto row = static_cast<Index>(i);
    ExpertLoad load = load_of(layers[i], totals.choices(row).data<std::int64_t>(), experts);
    const double* numbers = totals.load_loss(row).data<double>();
    report.aux_loss += numbers[0] / tokens;
    report.z_loss += numbers[1] / tokens;
    if (totals.echo) load.echo = echo_of(totals.of_echo(row).data<double>());
    if (totals.exposed) load.echo->exposed_us = totals.exposed.data<double>()[row];
    load.bias_min = numbers[2];
    load.bias_max = numbers[3];
    report.layers.push_back(std::move(load));
  }
  return report;
}

}  // namespace megalith::train
