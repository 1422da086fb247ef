#include "megalith/report/graphs_report.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/capture/accounting.h"
#include "megalith/capture/touched_memory.h"
#include "megalith/config/moe_rules.h"
#include "megalith/report/capture_picture.h"
#include "megalith/report/eager_parts.h"
#include "megalith/train/graph_accounting.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;
using train::GraphPlan;
using train::PlannedGraphs;

/// What graphs hold of some layers.
struct Covered {
  nn::LayerEdges edges;
  capture::LayerSizes sizes;
  std::vector<int> layers;  ///< of the model
};

struct Report {
  pipeline::ScheduleShape shape;
  std::vector<Covered> covered;  ///< those alike together; layers without graphs are left out
  std::vector<EagerPart> eager;
  std::string no_iteration, no_evaluation_graph;
  Index input_bytes = 0;  ///< of every layer
  std::vector<PlannedGraphs> ranks;
};

std::vector<Covered> covered_layers(const config::RunPlan& plan) {
  std::vector<Covered> all;
  for (Index layer = 0; layer < plan.model.num_layers; ++layer) {
    const nn::LayerEdges edges = train::captured_edges(plan, layer);
    if (!edges.any()) continue;
    const capture::LayerSizes sizes = train::layer_sizes(plan, layer);
    auto same = std::ranges::find_if(
        all, [&](const Covered& c) { return c.edges == edges && (sizes == c.sizes || edges.ends_layer()); });
    if (same == all.end()) same = all.insert(all.end(), Covered{edges, sizes, {}});
    same->layers.push_back(static_cast<int>(layer));
  }
  return all;
}

Report make_report(const config::RunPlan& plan) {
  require_legal_scopes(plan);
  Report report{train::training_shape(plan),
                covered_layers(plan),
                eager_parts(plan),
                no_iteration(plan),
                no_evaluation_graph(plan),
                capture::input_bytes(train::layer_sizes(plan, 0)),
                grid::dense_grid(plan.grid).per_rank([&](int rank) { return train::plan_graphs(plan, rank); })};
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) report.ranks[rank].rank = static_cast<int>(rank);
  return report;
}

/// Those of a place's owners that the plan has.
std::vector<std::string_view> owners_in(const BytesByOwner& plan, const capture::PlannedPlace& planned) {
  std::vector<std::string_view> owners;
  std::ranges::copy_if(planned.owners, std::back_inserter(owners),
                       [&](std::string_view owner) { return plan.contains(std::string(owner)); });
  return owners;
}

constexpr const char* kPlanOwners[] = {"activations", kScratchOwner, "inputs", "pipeline buffers"};

// ---- JSON -----------------------------------------------------------------------------------------------------------

ordered_json mode_json(const GraphPlan& mode) {
  return {{"training_graphs", mode.training.graphs},
          {"evaluation_graphs", mode.evaluation_graphs},
          {"launches_per_step", mode.training.launches_per_step},
          {"added_bytes", mode.added_bytes}};
}

ordered_json iteration_json(const std::optional<GraphPlan>& mode) { return mode ? mode_json(*mode) : ordered_json(); }

ordered_json rank_json(const PlannedGraphs& r) {
  ordered_json held;
  for (const char* owner : kPlanOwners) held[owner] = r.plan.at(owner);
  return {{"rank", r.rank},
          {"stage", r.stage},
          {"in_flight", r.in_flight},
          {"slots", r.slots},
          {"captured_layers_per_chunk", r.captured_layers},
          {"layers_per_microbatch", mode_json(r.per_microbatch)},
          {"layers_per_slot", mode_json(r.per_slot)},
          {"iteration", iteration_json(r.iteration)},
          {"lazy_warmup_passes", r.lazy_warmup_passes},
          {"owned_buffers",
           {{"static_inputs", r.owned.static_inputs},
            {"static_input_bytes", r.owned.static_input_bytes},
            {"unshared_input_bytes", r.owned.unshared_input_bytes},
            {"second_input_bytes", r.owned.second_input_bytes},
            {"output_grad_bytes", r.owned.output_grad_bytes},
            {"boundary_bytes", r.owned.boundary_bytes}}},
          {"planned_bytes", std::move(held)},
          {"fragmentation_bytes", r.fragmentation_bytes}};
}

std::string json_text(const config::RunPlan& plan, const Report& report) {
  ordered_json ranks = ordered_json::array(), places = ordered_json::array(), eager = ordered_json::array();
  for (const PlannedGraphs& r : report.ranks) ranks.push_back(rank_json(r));
  Index boundary = 0;
  for (const Covered& covered : report.covered) {
    boundary = std::max(boundary, capture::boundary_bytes(covered.edges, covered.sizes));
    for (const capture::PlannedPlace& planned : capture::planned_places(covered.edges))
      places.push_back({{"tensor", name(planned.role)},
                        {"place", planned.place},
                        {"owners", owners_in(report.ranks.front().plan, planned)},
                        {"layers", covered.layers}});
  }
  for (const EagerPart& part : report.eager)
    eager.push_back({{"part", part.part}, {"layers", part.layers}, {"why", part.why}});
  const ordered_json out{{"grid", config::grid_text(plan)},
                         {"mode", name(plan.graphs.mode)},
                         {"per", name(plan.graphs.per)},
                         {"scopes", config::graph_scopes(plan).names()},
                         {"eager", std::move(eager)},
                         {"no_iteration", report.no_iteration},
                         {"no_evaluation_graph", report.no_evaluation_graph},
                         {"microbatches", report.shape.num_microbatches},
                         {"captured_microbatches", captured_microbatches(report.shape)},
                         {"layer_input_bytes", report.input_bytes},
                         {"layer_boundary_bytes", boundary},
                         {"aliases", std::move(places)},
                         {"ranks", std::move(ranks)}};
  return out.dump(2) + "\n";
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string covered_text(const config::RunPlan& plan, const Report& report) {
  if (report.covered.empty()) return "no layer";
  if (config::graph_scopes(plan).empty()) return "whole layers";
  return str("scopes ", text(config::graph_scopes(plan)));
}

std::string header(const config::RunPlan& plan, const Report& report) {
  return str("grid ", config::grid_text(plan), ", ", plan.grid.world_size, " ranks, ", report.shape.num_microbatches,
             " microbatches a step, ", covered_text(plan, report),
             "; the recipe runs graphs.mode = ", name(plan.graphs.mode), "\n");
}

std::string iteration_text(const Report& report) {
  if (!report.no_iteration.empty()) return str("Iteration: none: ", report.no_iteration, ". ");
  if (report.no_evaluation_graph.empty()) return "Iteration: training + evaluation. ";
  return str("Iteration: training; evaluation, which drops and pads nothing, is eager: ", report.no_evaluation_graph,
             ". ");
}

std::string counts_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank", "stage", "layers", "slots", "in flight", "per microbatch",
                                              "per slot", "launches", "iteration", "launches"}};
  for (const PlannedGraphs& r : report.ranks) {
    rows.push_back({str(r.rank), str(r.stage), joined(r.captured_layers), joined(r.slots), str(r.in_flight),
                    str(r.per_microbatch.training.graphs), str(r.per_slot.training.graphs),
                    str(r.per_slot.training.launches_per_step),
                    r.iteration ? str(r.iteration->training.graphs, "+", r.iteration->evaluation_graphs) : "-",
                    r.iteration ? str(r.iteration->training.launches_per_step) : "-"});
  }
  return "\nGraphs of a rank and launches a step\n" + text_table(rows) + iteration_text(report) +
         "With graphs of layers, evaluation runs eagerly.\n";
}

std::string eager_table(const Report& report) {
  if (report.eager.empty()) return "";
  std::vector<std::vector<std::string>> rows{{"layers", "stays eager", "why"}};
  for (const EagerPart& part : report.eager) rows.push_back({stretches(part.layers), part.part, part.why});
  return "\n" + text_table(rows, Align::left);
}

std::string added_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank", "per microbatch", "per slot", "iteration"}};
  for (const PlannedGraphs& r : report.ranks) {
    rows.push_back({str(r.rank), human_bytes(r.per_microbatch.added_bytes), human_bytes(r.per_slot.added_bytes),
                    r.iteration ? human_bytes(r.iteration->added_bytes) : "-"});
  }
  return "\nMemory that graphs add to the plan (per slot: copies of messages; iteration: all inputs of a step)\n" +
         text_table(rows);
}

std::string owned_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{
      {"rank", "static inputs", "bytes", "second input", "output gradients", "boundary"}};
  for (const PlannedGraphs& r : report.ranks) {
    rows.push_back({str(r.rank), str(r.owned.static_inputs), human_bytes(r.owned.static_input_bytes),
                    human_bytes(r.owned.second_input_bytes), human_bytes(r.owned.output_grad_bytes),
                    human_bytes(r.owned.boundary_bytes)});
  }
  return "\nWhat graphs per microbatch would take with buffers of their own; here they lie in the plan\n" +
         text_table(rows);
}

std::string plan_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank"}};
  for (const char* owner : kPlanOwners) rows.front().emplace_back(owner);
  rows.front().emplace_back("fragmentation");
  for (const PlannedGraphs& r : report.ranks) {
    std::vector<std::string>& row = rows.emplace_back(1, str(r.rank));
    for (const char* owner : kPlanOwners) row.push_back(human_bytes(r.plan.at(owner)));
    row.push_back(human_bytes(r.fragmentation_bytes));
  }
  return "\nThe plan, with and without graphs\n" + text_table(rows) +
         "Fragmentation: of the scratch, what no tensor holds when they hold most.\n";
}

std::string alias_table(const Report& report) {
  std::string tables;
  for (const Covered& covered : report.covered) {
    const std::string of = report.covered.size() == 1 ? "" : str(" (layers ", stretches(covered.layers), ")");
    std::vector<std::vector<std::string>> rows{{"of a layer's graph" + of, "lies in", "memory plan"}};
    for (const capture::PlannedPlace& planned : capture::planned_places(covered.edges)) {
      std::string owners;
      for (const std::string_view owner : owners_in(report.ranks.front().plan, planned))
        owners += str(owners.empty() ? "" : ", ", owner);
      rows.push_back({std::string(name(planned.role)), std::string(planned.place), owners});
    }
    tables += "\n" + text_table(rows, Align::left);
  }
  return tables;
}

}  // namespace

const char* const kGraphsJsonKeys =
    R"(JSON: an object with
  grid, mode, per, scopes    of the recipe; scopes of a model with experts: what can be captured, if it names none
  eager                      what of layers stays eager beside their graphs: part, layers, why
  no_iteration               why a step cannot be one graph; empty where it can
  no_evaluation_graph        the same of an evaluation
  microbatches               of a step on a rank; captured_microbatches: those with graphs of their own
  layer_input_bytes          of one layer's input; layer_boundary_bytes: of what leaves its graph
  aliases                    what graphs find in the memory plan: tensor, place, owners, layers
  ranks                      for every rank:
    rank, stage, in_flight   most chunks of microbatches whose activations are kept
    slots                    where they are kept; a number a chunk, or one for all
    captured_layers_per_chunk
    layers_per_microbatch, layers_per_slot, iteration
                             training_graphs, evaluation_graphs, launches_per_step, added_bytes (beside the
                             memory plan); iteration is null where there is none
    lazy_warmup_passes       eager ones before the recording, where libraries start lazily; ours do without
    owned_buffers            what graphs per microbatch with buffers of their own would take, and ours do not:
                             static_inputs, static_input_bytes, unshared_input_bytes (one for every microbatch),
                             second_input_bytes (where a graph begins with a sum), output_grad_bytes, boundary_bytes
    planned_bytes            activations, scratch, inputs, pipeline buffers: as `megalith plan` has them
    fragmentation_bytes      of the scratch, what no tensor holds when they hold most
)";

std::string graphs_report(const config::RunPlan& plan, GraphsFormat format) {
  const Report report = make_report(plan);
  if (format == GraphsFormat::json) return json_text(plan, report);
  return header(plan, report) + counts_table(report) + eager_table(report) + added_table(report) + owned_table(report) +
         plan_table(report) + alias_table(report);
}

std::string graphs_picture(const config::RunPlan& plan, int rank) {
  if (rank < 0 || rank >= plan.grid.world_size)
    throw ConfigError(str("--rank = ", rank, ": must be in [0, ", plan.grid.world_size, ")"));
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  train::Engine engine(*world, plan);
  return capture_picture(train::training_shape(plan), engine.mesh().pp_rank(), engine.stage().schedule());
}

}  // namespace megalith::apps
