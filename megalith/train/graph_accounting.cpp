#include "megalith/train/graph_accounting.h"

#include <array>
#include <memory>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/comm/gather_values.h"

namespace megalith::train {
namespace {

using capture::GraphMode;
using capture::GraphsPer;

/// A rank of the same run with other graphs, without memory or other ranks.
class DryEngine {
 public:
  DryEngine(const config::RunPlan& plan, int rank, GraphMode mode, GraphsPer per = GraphsPer::microbatch)
      : plan_(plan), world_(comm::dry_world(rank, plan.grid.world_size)), engine_(*world_, with(plan_, mode, per)) {}
  Engine* operator->() { return &engine_; }

 private:
  static const config::RunPlan& with(config::RunPlan& plan, GraphMode mode, GraphsPer per) {
    plan.graphs.mode = mode;
    plan.graphs.per = per;
    return plan;
  }
  config::RunPlan plan_;
  std::unique_ptr<comm::World> world_;
  Engine engine_;
};

template <class T>
std::vector<std::vector<T>> for_all(const capture::RankLayers& layers, const T& value) {
  std::vector<std::vector<T>> all;
  for (const int count : layers.per_chunk) all.emplace_back(static_cast<std::size_t>(count), value);
  return all;
}

std::string milliseconds(double seconds) { return str(static_cast<Index>(seconds * 1e3 + 0.5), " ms"); }
std::string microseconds(double seconds) { return str(static_cast<Index>(seconds * 1e6 + 0.5), " us"); }

}  // namespace

const GraphPlan& PlannedGraphs::of(const capture::GraphsConfig& graphs) const {
  if (graphs.mode == GraphMode::iteration) return iteration;
  return graphs.per == GraphsPer::slot ? per_slot : per_microbatch;
}

pipeline::ScheduleShape training_shape(const config::RunPlan& plan) {
  const Index microbatches = plan.train.global_batch / (plan.train.micro_batch * plan.grid.dp);
  return {plan.grid.pp, plan.chunks, static_cast<int>(microbatches), plan.group_size};
}

capture::LayerSizes layer_sizes(const config::RunPlan& plan) {
  return {.tokens = plan.train.micro_batch * plan.model.seq_len / plan.row_shares(),
          .hidden_size = plan.model.hidden_size,
          .activation_bytes = size_of(plan.train.policy().compute)};
}

PlannedGraphs plan_graphs(const config::RunPlan& plan, int rank) {
  // Where graphs copy messages, slots are of other sizes, so chunks may share them where they do not without graphs.
  DryEngine eager(plan, rank, GraphMode::none), by_slot(plan, rank, GraphMode::layers, GraphsPer::slot),
      by_step(plan, rank, GraphMode::iteration);
  const pipeline::ScheduleShape shape = training_shape(plan);
  const capture::Coverage coverage = covered(plan.graphs.scopes, {});
  const capture::LayerSizes sizes = layer_sizes(plan);
  capture::RankLayers layers{shape, eager->mesh().pp_rank(), {}};
  for (const model::GptChunk& chunk : eager->stage().chunks())
    layers.per_chunk.push_back(coverage.any() ? static_cast<int>(chunk.range().layers.size()) : 0);
  const pipeline::LoweredSchedule& lowered = eager->stage().schedule();
  const pipeline::LoweredSchedule& slots = by_slot->stage().schedule();
  const auto more_than_eager = [&](DryEngine& other) {
    return total(other->planned_bytes()) - total(eager->planned_bytes());
  };
  PlannedGraphs r;
  r.rank = rank;
  r.stage = layers.stage;
  r.in_flight = peak_in_flight(shape, layers.stage);
  r.captured_layers = layers.per_chunk;
  r.slots = lowered.num_slots;
  r.per_microbatch = {count_graphs(layers, lowered, GraphsPer::microbatch), 0, 0};
  r.per_slot = {count_graphs(layers, slots, GraphsPer::slot), 0, more_than_eager(by_slot)};
  r.lazy_warmup_passes =
      capture::lazy_warmup_passes(plan.graphs.warmup_steps, shape.num_microbatches, captured_microbatches(shape));
  r.owned = capture::owned_buffers(layers, for_all(layers, sizes), for_all(layers, coverage));
  r.plan = eager->planned_bytes();
  r.fragmentation_bytes = eager->fragmentation_bytes();
  r.iteration = {{.graphs = 1, .launches_per_step = 1}, 1, more_than_eager(by_step)};
  return r;
}

bool GraphAccount::is_like(const GraphAccount& other) const {
  const auto numbers = [](const GraphAccount& a) {
    return std::array{a.planned_graphs, a.planned_launches, a.static_inputs, a.output_grads,
                      a.boundary,       a.added_bytes,      a.scratch_bytes, a.fragmentation_bytes,
                      a.graphs,         a.launches,         a.ops,           a.nodes,
                      a.device_bytes};
  };
  return numbers(*this) == numbers(other);
}

std::vector<GraphAccount> account_for_graphs(Engine& engine, const config::RunPlan& plan) {
  comm::World& world = engine.world();
  const PlannedGraphs planned = plan_graphs(plan, world.rank());
  const GraphPlan& of_mode = planned.of(plan.graphs);
  const CapturedGraphs captured = engine.captured_graphs();
  GraphAccount mine{.planned_graphs = of_mode.training.graphs,
                    .planned_launches = of_mode.training.launches_per_step,
                    .static_inputs = planned.owned.static_input_bytes,
                    .output_grads = planned.owned.output_grad_bytes,
                    .boundary = planned.owned.boundary_bytes,
                    .added_bytes = of_mode.added_bytes,
                    .scratch_bytes = engine.taken_bytes().at(kScratchOwner),
                    .fragmentation_bytes = engine.fragmentation_bytes(),
                    .graphs = captured.stats.graphs,
                    .launches = captured.launches_per_step,
                    .ops = captured.stats.ops,
                    .nodes = captured.stats.nodes,
                    .device_bytes = captured.device_bytes,
                    .capture_s = captured.stats.capture_s,
                    .instantiate_s = captured.stats.instantiate_s,
                    .launch_s = captured.launch_s};
  if (engine.eval_graph().captured()) mine.planned_graphs += of_mode.evaluation_graphs;
  return comm::gather_values(world.all(), mine);
}

std::string graphs_table(const std::vector<GraphAccount>& ranks, GraphMode mode) {
  const bool of_layers = mode == GraphMode::layers;
  std::vector<std::vector<std::string>> rows{{"rank", "graphs", "launches", "ops", "nodes", "plan adds"}};
  const auto add = [&rows](const std::vector<std::string>& cells) {
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
  };
  if (of_layers) add({"static inputs", "output gradients", "boundary"});
  add({"scratch", "fragmentation", "driver took", "capture", "instantiate", "launch"});
  const auto of_planned = [](Index captured, Index planned) { return str(captured, " of ", planned); };
  std::size_t alike = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GraphAccount& r = ranks[rank];
    if (rank > 0 && r.is_like(ranks.front())) {
      ++alike;
      continue;
    }
    rows.push_back({str(rank), of_planned(r.graphs, r.planned_graphs), of_planned(r.launches, r.planned_launches),
                    str(r.ops), str(r.nodes), human_bytes(r.added_bytes)});
    if (of_layers) add({human_bytes(r.static_inputs), human_bytes(r.output_grads), human_bytes(r.boundary)});
    add({human_bytes(r.scratch_bytes), human_bytes(r.fragmentation_bytes), human_bytes(r.device_bytes),
         milliseconds(r.capture_s), milliseconds(r.instantiate_s), r.launch_s > 0 ? microseconds(r.launch_s) : "-"});
  }
  return text_table(rows) + (alike == 0 ? "" : str("like rank 0: ", alike, " more\n")) +
         "Scratch lies in the plan and is shared by all graphs; fragmentation is what of it no tensor holds when they "
         "hold most; launch is the host's time to launch a step, - before the first.\n" +
         (of_layers ? "Static inputs, output gradients and boundary lie in the plan, beside which graphs add what "
                      "\"plan adds\" says.\n"
                    : "");
}

}  // namespace megalith::train
