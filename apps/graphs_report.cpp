#include "apps/graphs_report.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/capture/accounting.h"
#include "megalith/train/engine.h"

#include "apps/capture_picture.h"

namespace megalith::apps {
namespace {

using capture::GraphCounts;
using capture::GraphsPer;
using nlohmann::ordered_json;

/// One way to run from graphs.
struct ModeCost {
  GraphCounts training;
  Index evaluation_graphs = 0;
  int warmup_passes = 0;  ///< eager ones, just before the recording
  Index added_bytes = 0;  ///< beside the memory plan
};

struct RankReport {
  int rank = 0, stage = 0, in_flight = 0;
  std::vector<int> captured_layers;  ///< by chunk
  std::vector<int> slots;            ///< as LoweredSchedule counts them
  ModeCost per_microbatch, per_slot, iteration;
  capture::OwnedBuffers owned;
  BytesByOwner plan;
};

struct Report {
  pipeline::ScheduleShape shape;
  capture::Coverage coverage;
  capture::LayerSizes layer;
  std::vector<RankReport> ranks;
};

pipeline::ScheduleShape training_shape(const config::RunPlan& plan) {
  const Index microbatches = plan.train.global_batch / (plan.train.micro_batch * plan.grid.dp);
  return {plan.grid.pp, plan.chunks, static_cast<int>(microbatches), plan.group_size};
}

capture::RankLayers rank_layers(train::Engine& engine, const pipeline::ScheduleShape& shape,
                                const capture::Coverage& coverage) {
  capture::RankLayers layers{shape, engine.mesh().pp_rank(), {}};
  for (const model::GptChunk& chunk : engine.stage().chunks())
    layers.per_chunk.push_back(coverage.any() ? static_cast<int>(chunk.range().layers.size()) : 0);
  return layers;
}

/// The same run with another graphs.mode.
config::RunPlan with_mode(config::RunPlan plan, capture::GraphMode mode) {
  plan.graphs.mode = mode;
  return plan;
}

BytesByOwner planned_bytes(const config::RunPlan& plan, int rank) {
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  return train::Engine(*world, plan).planned_bytes();
}

template <class T>
std::vector<std::vector<T>> for_all(const capture::RankLayers& layers, const T& value) {
  std::vector<std::vector<T>> all;
  for (const int count : layers.per_chunk) all.emplace_back(static_cast<std::size_t>(count), value);
  return all;
}

RankReport report_rank(const config::RunPlan& plan, const Report& report, int rank) {
  const config::RunPlan eager = with_mode(plan, capture::GraphMode::none);
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  train::Engine engine(*world, eager);
  const capture::RankLayers layers = rank_layers(engine, report.shape, report.coverage);
  const pipeline::LoweredSchedule& lowered = engine.stage().schedule();
  const Index message_bytes = capture::input_bytes(report.layer);
  const int microbatches = report.shape.num_microbatches;
  const int warmup =
      capture::warmup_passes(plan.graphs.warmup_steps, microbatches, captured_microbatches(report.shape));
  RankReport r;
  r.rank = rank;
  r.stage = layers.stage;
  r.in_flight = peak_in_flight(report.shape, layers.stage);
  r.captured_layers = layers.per_chunk;
  r.slots = lowered.num_slots;
  r.per_microbatch = {count_graphs(layers, lowered, GraphsPer::microbatch), 0, warmup, 0};
  r.per_slot = {count_graphs(layers, lowered, GraphsPer::slot), 0, warmup,
                capture::message_copies(lowered, report.coverage).total() * message_bytes};
  r.owned = capture::owned_buffers(layers, for_all(layers, report.layer), for_all(layers, report.coverage));
  r.plan = engine.planned_bytes();
  const BytesByOwner of_iteration = planned_bytes(with_mode(plan, capture::GraphMode::iteration), rank);
  r.iteration = {{.graphs = 1, .launches_per_step = 1}, 1, 0, total(of_iteration) - total(r.plan)};
  return r;
}

Report make_report(const config::RunPlan& plan) {
  if (const auto rule = capture::first_broken_rule(plan.graphs.scopes, plan.run_facts()))
    throw ConfigError(str("graphs.scopes = ", text(plan.graphs.scopes), ": V", rule->number, ": ", rule->text));
  Report report;
  report.shape = training_shape(plan);
  report.coverage = covered(plan.graphs.scopes, {});
  report.layer = {.tokens = plan.train.micro_batch * plan.model.seq_len,
                  .hidden_size = plan.model.hidden_size,
                  .activation_bytes = size_of(plan.train.policy().compute)};
  for (int rank = 0; rank < plan.grid.world_size; ++rank) report.ranks.push_back(report_rank(plan, report, rank));
  return report;
}

/// What of the memory plan graphs use in place of buffers of their own.
struct Alias {
  const char* tensor;
  const char* place;
  std::vector<const char*> owners;  ///< of the memory plan
};
const std::vector<Alias>& aliases() {
  static const std::vector<Alias> all = {
      {"input of a layer",
       "output of the layer below, kept in the microbatch's slot for its backward",
       {"activations"}},
      {"input of a chunk", "the microbatch's receive buffer (per slot: a copy)", {"pipeline buffers"}},
      {"what backward reads", "the slot", {"activations"}},
      {"output of a layer",
       "input of the layer above; of a chunk: its send buffer",
       {"activations", "pipeline buffers"}},
      {"output gradient", "scratch that all layers, chunks and microbatches share", {"scratch"}},
      {"input gradient", "the same; of a chunk: its send buffer", {"scratch", "pipeline buffers"}},
      {"weights, their gradients", "the flat buffers", {"parameters", "gradients"}}};
  return all;
}
constexpr const char* kPlanOwners[] = {"activations", "scratch", "inputs", "pipeline buffers"};

// ---- JSON -----------------------------------------------------------------------------------------------------------

ordered_json mode_json(const ModeCost& mode) {
  return {{"training_graphs", mode.training.graphs},
          {"evaluation_graphs", mode.evaluation_graphs},
          {"launches_per_step", mode.training.launches_per_step},
          {"warmup_passes", mode.warmup_passes},
          {"added_bytes", mode.added_bytes}};
}

ordered_json rank_json(const RankReport& r) {
  ordered_json held;
  for (const char* owner : kPlanOwners) held[owner] = r.plan.at(owner);
  return {{"rank", r.rank},
          {"stage", r.stage},
          {"in_flight", r.in_flight},
          {"slots", r.slots},
          {"captured_layers_per_chunk", r.captured_layers},
          {"layers_per_microbatch", mode_json(r.per_microbatch)},
          {"layers_per_slot", mode_json(r.per_slot)},
          {"iteration", mode_json(r.iteration)},
          {"owned_buffers",
           {{"static_inputs", r.owned.static_inputs},
            {"static_input_bytes", r.owned.static_input_bytes},
            {"unshared_input_bytes", r.owned.unshared_input_bytes},
            {"output_grad_bytes", r.owned.output_grad_bytes},
            {"boundary_bytes", r.owned.boundary_bytes}}},
          {"planned_bytes", std::move(held)}};
}

std::string json_text(const config::RunPlan& plan, const Report& report) {
  ordered_json ranks = ordered_json::array(), places = ordered_json::array();
  for (const RankReport& r : report.ranks) ranks.push_back(rank_json(r));
  for (const Alias& alias : aliases())
    places.push_back({{"tensor", alias.tensor}, {"place", alias.place}, {"owners", alias.owners}});
  const ordered_json out{{"grid", config::grid_text(plan)},
                         {"mode", name(plan.graphs.mode)},
                         {"per", name(plan.graphs.per)},
                         {"scopes", plan.graphs.scopes.names()},
                         {"microbatches", report.shape.num_microbatches},
                         {"captured_microbatches", captured_microbatches(report.shape)},
                         {"layer_input_bytes", capture::input_bytes(report.layer)},
                         {"layer_boundary_bytes", capture::boundary_bytes(report.coverage, report.layer)},
                         {"aliases", std::move(places)},
                         {"ranks", std::move(ranks)}};
  return out.dump(2) + "\n";
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string covered_text(const config::RunPlan& plan, const capture::Coverage& coverage) {
  if (!coverage.any()) return "no layer";
  if (plan.graphs.scopes.empty()) return "whole layers";
  return str("scopes ", text(plan.graphs.scopes));
}

std::string header(const config::RunPlan& plan, const Report& report) {
  return str("grid ", config::grid_text(plan), ", ", plan.grid.world_size, " ranks, ", report.shape.num_microbatches,
             " microbatches a step, ", covered_text(plan, report.coverage),
             "; the recipe runs graphs.mode = ", name(plan.graphs.mode), "\n");
}

std::string counts_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank", "stage", "layers", "slots", "in flight", "per microbatch",
                                              "per slot", "launches", "warm-up passes", "iteration", "launches"}};
  for (const RankReport& r : report.ranks) {
    rows.push_back({str(r.rank), str(r.stage), joined(r.captured_layers), joined(r.slots), str(r.in_flight),
                    str(r.per_microbatch.training.graphs), str(r.per_slot.training.graphs),
                    str(r.per_slot.training.launches_per_step), str(r.per_slot.warmup_passes),
                    str(r.iteration.training.graphs, "+", r.iteration.evaluation_graphs),
                    str(r.iteration.training.launches_per_step)});
  }
  return "\nGraphs of a rank and launches a step\n" + text_table(rows) +
         "Iteration: training + evaluation. With graphs of layers, evaluation runs eagerly.\n";
}

std::string added_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank", "per microbatch", "per slot", "iteration"}};
  for (const RankReport& r : report.ranks) {
    rows.push_back({str(r.rank), human_bytes(r.per_microbatch.added_bytes), human_bytes(r.per_slot.added_bytes),
                    human_bytes(r.iteration.added_bytes)});
  }
  return "\nMemory that graphs add to the plan (per slot: copies of messages; iteration: all inputs of a step)\n" +
         text_table(rows);
}

std::string owned_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank", "static inputs", "bytes", "output gradients", "boundary"}};
  for (const RankReport& r : report.ranks) {
    rows.push_back({str(r.rank), str(r.owned.static_inputs), human_bytes(r.owned.static_input_bytes),
                    human_bytes(r.owned.output_grad_bytes), human_bytes(r.owned.boundary_bytes)});
  }
  return "\nWhat graphs per microbatch would take with buffers of their own; here they lie in the plan\n" +
         text_table(rows);
}

std::string plan_table(const Report& report) {
  std::vector<std::vector<std::string>> rows{{"rank"}};
  for (const char* owner : kPlanOwners) rows.front().emplace_back(owner);
  for (const RankReport& r : report.ranks) {
    std::vector<std::string>& row = rows.emplace_back(1, str(r.rank));
    for (const char* owner : kPlanOwners) row.push_back(human_bytes(r.plan.at(owner)));
  }
  return "\nThe plan, with and without graphs\n" + text_table(rows);
}

std::string alias_table() {
  std::vector<std::vector<std::string>> rows{{"of a layer's graph", "lies in", "memory plan"}};
  for (const Alias& alias : aliases()) {
    std::string owners;
    for (const char* owner : alias.owners) owners += str(owners.empty() ? "" : ", ", owner);
    rows.push_back({alias.tensor, alias.place, owners});
  }
  return "\n" + text_table(rows, Align::left);
}

}  // namespace

const char* const kGraphsJsonKeys =
    R"(JSON: an object with
  grid, mode, per, scopes    of the recipe
  microbatches               of a step on a rank; captured_microbatches: those with graphs of their own
  layer_input_bytes          of one layer's input; layer_boundary_bytes: of what leaves its graph
  aliases                    what graphs find in the memory plan: tensor, place, owners
  ranks                      for every rank:
    rank, stage, in_flight   most chunks of microbatches whose activations are kept
    slots                    where they are kept; a number a chunk, or one for all
    captured_layers_per_chunk
    layers_per_microbatch, layers_per_slot, iteration
                             training_graphs, evaluation_graphs, launches_per_step, warmup_passes (eager, before the
                             recording), added_bytes (beside the memory plan)
    owned_buffers            what graphs per microbatch with buffers of their own would take, and ours do not:
                             static_inputs, static_input_bytes, unshared_input_bytes (one for every microbatch),
                             output_grad_bytes, boundary_bytes
    planned_bytes            activations, scratch, inputs, pipeline buffers: as `megalith plan` has them
)";

std::string graphs_report(const config::RunPlan& plan, GraphsFormat format) {
  const Report report = make_report(plan);
  if (format == GraphsFormat::json) return json_text(plan, report);
  return header(plan, report) + counts_table(report) + added_table(report) + owned_table(report) + plan_table(report) +
         alias_table();
}

std::string graphs_picture(const config::RunPlan& plan, int rank) {
  if (rank < 0 || rank >= plan.grid.world_size)
    throw ConfigError(str("--rank = ", rank, ": must be in [0, ", plan.grid.world_size, ")"));
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  train::Engine engine(*world, plan);
  return capture_picture(training_shape(plan), engine.mesh().pp_rank(), engine.stage().schedule());
}

}  // namespace megalith::apps
