#include "megalith/report/echo_trace_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;

constexpr Index kPlans = ops::kMaxEchoSlots + 1;  // with 0 to 8 slots

/// What one layer has had in all microbatches.
struct LayerLoads {
  Index layer = 0, microbatches = 0, num_plans = 0;
  std::array<double, kPlans> sum{}, worst{};  ///< of max/mean, by slots
  Index pairs = 0, moved = 0, clones = 0;     ///< with the slots of the request
  Index max_clones_per_rank = 0;              ///< clones of one rank's experts in one microbatch
  Index wanted = 0;                           ///< slots with which no microbatch drops more
  Index paying = 0;                           ///< clones above the break-even

  double mean(Index slots) const { return sum[static_cast<std::size_t>(slots)] / static_cast<double>(microbatches); }
  double clones_each() const { return static_cast<double>(clones) / static_cast<double>(microbatches); }
  double pairs_of_clone() const { return static_cast<double>(moved) / static_cast<double>(clones); }
};

void add_microbatch(const EchoCounts& counts, const EchoTraceRequest& request, LayerLoads& loads) {
  ++loads.microbatches;
  for (Index slots = 0; slots < loads.num_plans; ++slots) {
    EchoSettings settings = request.settings;
    settings.slots = slots;
    const EchoResult plan = run_echo(counts, settings);
    const double load = plan.max_over_mean(plan.load_after);
    const auto i = static_cast<std::size_t>(slots);
    loads.sum[i] += load;
    loads.worst[i] = std::max(loads.worst[i], load);
    if (slots + 1 == loads.num_plans)
      loads.wanted = std::max<Index>(loads.wanted, *std::ranges::max_element(plan.wanted));
    if (slots != request.settings.slots) continue;
    std::vector<Index> sent(static_cast<std::size_t>(counts.ranks), 0);
    for (Index slot = 0; slot < plan.all_slots(); ++slot) {
      if (plan.src[static_cast<std::size_t>(slot)] < 0) continue;
      const Index of_home = ++sent[static_cast<std::size_t>(plan.home(slot))];
      loads.max_clones_per_rank = std::max(loads.max_clones_per_rank, of_home);
      if (request.costs.has_rates() && plan.cap[static_cast<std::size_t>(slot)] > request.costs.keep()) ++loads.paying;
    }
    loads.pairs += plan.pairs();
    loads.moved += plan.moved();
    loads.clones += plan.clones();
  }
}

std::vector<LayerLoads> loads_of(const EchoTrace& trace, const EchoTraceRequest& request) {
  std::vector<LayerLoads> all;
  for (Index layer = 0; layer < trace.shape().layers; ++layer) {
    LayerLoads loads{.layer = trace.model_layer(layer),
                     .num_plans = std::min<Index>(kPlans, trace.shape().experts + 1)};
    if (request.layer >= 0 && request.layer != loads.layer) continue;
    const Index first = request.step > 0 ? request.step : trace.first_step(),
                last = request.step > 0 ? request.step : trace.last_step();
    for (Index step = first; step <= last; ++step) {
      for (Index microbatch = 0; microbatch < trace.microbatches(); ++microbatch)
        add_microbatch(trace.counts(step, layer, microbatch), request, loads);
    }
    all.push_back(loads);
  }
  return all;
}

/// "yes" where a layer's clones have on average more pairs than the break-even.
std::string verdict(const LayerLoads& loads, const EchoCosts& costs) {
  if (!costs.has_rates() || loads.clones == 0) return "-";
  return loads.pairs_of_clone() > costs.keep() ? "yes" : "no";
}

std::string steps_text(const EchoTrace& trace, const EchoTraceRequest& request) {
  return request.step > 0 ? str("step ", request.step) : str("steps ", trace.first_step(), " to ", trace.last_step());
}

std::string decimal(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string load_table(const std::vector<LayerLoads>& all, Index slots_asked) {
  std::vector<std::vector<std::string>> rows = {{"layer", "before"}};
  for (Index slots = 1; slots < all.front().num_plans; ++slots) rows[0].push_back(str(slots));
  rows[0].insert(rows[0].end(), {"worst before", "worst after"});
  for (const LayerLoads& loads : all) {
    std::vector<std::string> row = {str(loads.layer)};
    for (Index slots = 0; slots < loads.num_plans; ++slots) row.push_back(echo_ratio(loads.mean(slots)));
    row.push_back(echo_ratio(loads.worst.front()));
    row.push_back(echo_ratio(loads.worst[static_cast<std::size_t>(std::min(slots_asked, loads.num_plans - 1))]));
    rows.push_back(std::move(row));
  }
  return text_table(rows);
}

std::string clone_table(const std::vector<LayerLoads>& all, const EchoTraceRequest& request) {
  const EchoCosts& costs = request.costs;
  std::vector<std::vector<std::string>> rows = {
      {"layer", "clones", "max per rank", "pairs moved %", "pairs a clone", "slots that suffice", "pays"}};
  if (costs.has_bytes()) rows[0].insert(rows[0].end(), {"weights", "gradients"});
  for (const LayerLoads& loads : all) {
    rows.push_back({str(loads.layer), decimal("%.2f", loads.clones_each()), str(loads.max_clones_per_rank),
                    decimal("%.2f", 100 * static_cast<double>(loads.moved) / static_cast<double>(loads.pairs)),
                    loads.clones == 0 ? "-" : decimal("%.0f", loads.pairs_of_clone()), str(loads.wanted),
                    verdict(loads, costs)});
    if (!costs.has_bytes()) continue;
    rows.back().push_back(human_bytes(std::llround(costs.weights_bytes() * loads.clones_each())));
    rows.back().push_back(human_bytes(std::llround(costs.gradient_bytes() * loads.clones_each())));
  }
  return text_table(rows);
}

std::string trace_text(const EchoTrace& trace, const EchoTraceRequest& request, const std::vector<LayerLoads>& all) {
  const train::RouterTraceShape& shape = trace.shape();
  const EchoSettings& settings = request.settings;
  std::string text = str(request.file, ": ", steps_text(trace, request), "; ", shape.layers, " MoE layers of ",
                         shape.experts, " experts, top_k ", shape.top_k, "\n", trace.ranks(), " ranks of ",
                         trace.samples().micro_batch, " x ", shape.seq_len, " tokens; ", all.front().microbatches,
                         " microbatches a layer; balance ", name_of(settings.balance));
  if (settings.balance == ops::EchoBalance::greedy) text += str(", min_pairs ", settings.min_pairs);
  text +=
      str("\n\nPairs of the most loaded rank over the mean of ranks, by slots a rank: the mean of all microbatches;\n",
          "worst after: with ", settings.slots, " slots\n", load_table(all, settings.slots));
  text += str("\nA microbatch with ", settings.slots, " slots a rank\n", clone_table(all, request));
  text += break_even_text(request.costs);
  if (!request.costs.has_rates()) text += "pays: needs --link-gbps and --tflops\n";
  if (!request.costs.has_bytes()) text += "bytes: need --hidden and --ffn\n";
  const bool has_clones = std::ranges::any_of(all, [](const LayerLoads& loads) { return loads.clones > 0; });
  if (!has_clones && settings.slots > 0 && settings.min_pairs > 0)
    text += str("No clone would get min_pairs = ", settings.min_pairs, " pairs; --min-pairs 0 makes smaller ones.\n");
  if (shape.capacity != "none") text += "Pairs that the run's capacity dropped are counted: ECHO drops none.\n";
  return text;
}

std::string trace_json(const EchoTrace& trace, const EchoTraceRequest& request, const std::vector<LayerLoads>& all) {
  ordered_json layers = ordered_json::array();
  for (const LayerLoads& loads : all) {
    ordered_json mean = ordered_json::array(), worst = ordered_json::array();
    for (Index slots = 0; slots < loads.num_plans; ++slots) {
      mean.push_back(loads.mean(slots));
      worst.push_back(loads.worst[static_cast<std::size_t>(slots)]);
    }
    const EchoCosts& costs = request.costs;
    const std::string pays = verdict(loads, costs);
    layers.push_back(
        {{"layer", loads.layer},
         {"microbatches", loads.microbatches},
         {"max_over_mean", mean},
         {"worst_max_over_mean", worst},
         {"clones", loads.clones},
         {"max_clones_per_rank", loads.max_clones_per_rank},
         {"pairs", loads.pairs},
         {"pairs_moved", loads.moved},
         {"slots_that_suffice", loads.wanted},
         {"clones_above_break_even", costs.has_rates() ? ordered_json(loads.paying) : ordered_json()},
         {"pays", pays == "-" ? ordered_json() : ordered_json(pays == "yes")},
         {"weight_bytes",
          costs.has_bytes() ? ordered_json(costs.weights_bytes() * static_cast<double>(loads.clones)) : ordered_json()},
         {"gradient_bytes", costs.has_bytes() ? ordered_json(costs.gradient_bytes() * static_cast<double>(loads.clones))
                                              : ordered_json()}});
  }
  const EchoCosts& costs = request.costs;
  const ordered_json report{{"trace", request.file},
                            {"first_step", request.step > 0 ? request.step : trace.first_step()},
                            {"last_step", request.step > 0 ? request.step : trace.last_step()},
                            {"ranks", trace.ranks()},
                            {"experts", trace.shape().experts},
                            {"top_k", trace.shape().top_k},
                            {"dp", trace.samples().dp},
                            {"micro_batch", trace.samples().micro_batch},
                            {"seq_len", trace.shape().seq_len},
                            {"slots_per_rank", request.settings.slots},
                            {"min_pairs", request.settings.min_pairs},
                            {"balance", name_of(request.settings.balance)},
                            {"break_even_pairs", costs.has_rates() ? ordered_json(costs.keep()) : ordered_json()},
                            {"layers", layers}};
  return report.dump() + "\n";
}

}  // namespace

std::string echo_trace_report(const EchoTrace& trace, const EchoTraceRequest& request) {
  const std::vector<LayerLoads> all = loads_of(trace, request);
  return request.format == EchoFormat::json ? trace_json(trace, request, all) : trace_text(trace, request, all);
}

}  // namespace megalith::apps
