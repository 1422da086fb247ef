#include "megalith/train/graph_accounting.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/comm/gather_values.h"
#include "megalith/config/moe_rules.h"
#include "megalith/train/stage_config.h"

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
    plan.graphs.scopes = config::graph_scopes(plan);
    return plan;
  }
  config::RunPlan plan_;
  std::unique_ptr<comm::World> world_;
  Engine engine_;
};

/// The layers of a stage that graphs hold, wholly or in part, with what they hold: [chunk][captured layer].
struct CapturedLayers {
  capture::RankLayers rank;
  std::vector<std::vector<nn::LayerEdges>> edges;
  std::vector<std::vector<capture::LayerSizes>> sizes;
};

CapturedLayers captured_layers(const model::Stage& stage, const config::RunPlan& plan) {
  CapturedLayers captured{{training_shape(plan), stage.mesh().pp_rank(), {}}, {}, {}};
  captured.rank.shape.num_microbatches = model::num_microbatches(stage.config(), stage.mesh(), stage.step_batch());
  for (const model::Chunk& chunk : stage.chunks()) {
    std::vector<nn::LayerEdges>& of_chunk = captured.edges.emplace_back();
    std::vector<capture::LayerSizes>& sizes = captured.sizes.emplace_back();
    for (Index layer = chunk.range().layers.begin; layer < chunk.range().layers.end; ++layer) {
      const nn::LayerEdges edges = captured_edges(plan, layer);
      if (!edges.any()) continue;
      of_chunk.push_back(edges);
      sizes.push_back(layer_sizes(plan, layer));
    }
    captured.rank.per_chunk.push_back(static_cast<int>(of_chunk.size()));
  }
  return captured;
}

capture::OwnedBuffers owned_buffers(const CapturedLayers& captured) {
  return capture::owned_buffers(captured.rank, captured.sizes, captured.edges);
}

constexpr capture::GraphCounts kOneGraph{.graphs = 1, .launches_per_step = 1};

using Rows = std::vector<std::vector<std::string>>;

std::string milliseconds(double seconds) { return str(std::llround(seconds * 1e3), " ms"); }
std::string of_planned(Index captured, Index planned) { return str(captured, " of ", planned); }
std::string bytes_of_planned(Index captured, Index planned) {
  return str(human_bytes(captured), " of ", human_bytes(planned));
}

/// Rank 0 and those that are not alike.
std::vector<std::size_t> printed_ranks(const std::vector<GraphAccount>& ranks) {
  std::vector<std::size_t> printed{0};
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (!ranks[rank].is_like(ranks.front())) printed.push_back(rank);
  }
  return printed;
}

std::string counts_table(const std::vector<GraphAccount>& ranks, const std::vector<std::size_t>& printed) {
  Rows rows{{"rank", "graphs", "launches", "comm calls", "ops", "nodes", "plan adds", "scratch", "fragmentation",
             "driver took", "capture", "instantiate", "launch"}};
  for (const std::size_t rank : printed) {
    const GraphAccount& r = ranks[rank];
    rows.push_back({str(rank), of_planned(r.graphs, r.planned_graphs), of_planned(r.launches, r.planned_launches),
                    str(r.comm_calls), str(r.ops), str(r.nodes), human_bytes(r.added_bytes),
                    human_bytes(r.scratch_bytes), human_bytes(r.fragmentation_bytes), human_bytes(r.device_bytes),
                    milliseconds(r.capture_s), milliseconds(r.instantiate_s),
                    r.launch_s > 0 ? microseconds(r.launch_s) : "-"});
  }
  const std::size_t alike = ranks.size() - printed.size();
  return text_table(rows) + (alike == 0 ? "" : str("like rank 0: ", alike, " more\n")) +
         "Comm calls are the collectives and messages that a step's launches hold. Scratch lies in the plan and is "
         "shared by all graphs; fragmentation is what of it no tensor holds when they hold most; launch is the host's "
         "time to launch a step, - before the first.\n";
}

std::string edges_table(const std::vector<GraphAccount>& ranks, const std::vector<std::size_t>& printed) {
  Rows rows{{"rank", "static inputs", "bytes", "second input", "output gradients", "boundary", "kept for backward"}};
  for (const std::size_t rank : printed) {
    const capture::TouchedMemory& touched = ranks[rank].touched;
    const capture::OwnedBuffers& owned = ranks[rank].owned;
    rows.push_back({str(rank), of_planned(touched.inputs.count, owned.static_inputs),
                    bytes_of_planned(touched.inputs.bytes, owned.static_input_bytes),
                    bytes_of_planned(touched.second_inputs.bytes, owned.second_input_bytes),
                    bytes_of_planned(touched.output_grads.bytes, owned.output_grad_bytes),
                    bytes_of_planned(touched.outputs.bytes, owned.boundary_bytes), human_bytes(touched.saved.bytes)});
  }
  return "\nBuffers at the edges of graphs, most at once, by the addresses that captured ops touch; of those that "
         "graphs with buffers of their own would take\n" +
         text_table(rows) + "All lie in the plan, beside which graphs add what \"plan adds\" lists.\n";
}

/// "activations 3.50 KiB, pipeline buffers 512 B"
template <class Names>
std::string named_bytes(std::span<const Index> bytes, const Names& name_of) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) text += str(text.empty() ? "" : ", ", name_of(i), " ", human_bytes(bytes[i]));
  }
  return text.empty() ? "-" : text;
}

/// Whether graphs of two ranks find the same in the same owners' memory, and the same memory is two things to both.
bool lie_alike(const capture::TouchedMemory& a, const capture::TouchedMemory& b) {
  const auto same = [](const auto& rows, const auto& others) {
    return std::ranges::equal(rows, others, [](const auto& row, const auto& other) {
      return std::ranges::equal(row, other, [](Index one, Index two) { return (one > 0) == (two > 0); });
    });
  };
  return same(a.bytes, b.bytes) && same(a.shared, b.shared);
}

std::string places_table(const capture::TouchedMemory& touched) {
  Rows rows{{"to graphs", "lies in", "is also"}};
  for (std::size_t i = 0; i < capture::kRoles; ++i) {
    const auto role = static_cast<capture::Role>(i);
    const auto owner = [](std::size_t of) { return capture::kTouchedOwners[of]; };
    const auto other = [](std::size_t of) { return name(static_cast<capture::Role>(of)); };
    const std::string in = named_bytes(touched.bytes[i], owner);
    if (in == "-") continue;
    rows.push_back({std::string(name(role)), in,
                    i < capture::kEdgeRoles ? named_bytes(touched.shared[i], other) : std::string("-")});
  }
  return text_table(rows, Align::left);
}

std::string places_tables(const std::vector<GraphAccount>& ranks) {
  std::string text;
  std::vector<std::size_t> left(ranks.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  while (!left.empty()) {
    const capture::TouchedMemory& first = ranks[left.front()].touched;
    const auto others = std::stable_partition(left.begin(), left.end(),
                                              [&](std::size_t rank) { return lie_alike(ranks[rank].touched, first); });
    const auto alike = others - left.begin() - 1;
    const std::string others_alike = alike == 0 ? "" : str("; like it: ", alike, " more");
    text += ranks[left.front()].graphs == 0
                ? str("\nRank ", left.front(), " has no layers, and no graphs", others_alike, "\n")
                : str("\nWhere graphs of rank ", left.front(), " find what they touch, bytes over a step", others_alike,
                      "\n", places_table(first));
    left.erase(left.begin(), others);
  }
  return text;
}

}  // namespace

pipeline::ScheduleShape training_shape(const config::RunPlan& plan) {
  const Index microbatches = plan.train.global_batch / (plan.train.micro_batch * plan.grid.dp);
  return {plan.grid.pp, plan.chunks, static_cast<int>(microbatches), plan.group_size};
}

capture::LayerSizes layer_sizes(const config::RunPlan& plan, Index layer) {
  const DType compute = plan.train.policy().compute;
  capture::LayerSizes sizes{.tokens = plan.train.micro_batch * plan.model.seq_len / plan.row_shares(),
                            .hidden_size = plan.model.hidden_size,
                            .activation_bytes = size_of(compute)};
  const nn::MoeConfig& moe = plan.model.moe;
  if (!moe.is_moe_layer(layer)) return sizes;
  const config::MoeRows rows = config::moe_rows(plan);
  sizes.routed_tokens = rows.routed;
  sizes.num_experts = moe.num_experts;
  sizes.top_k = moe.top_k;
  sizes.permuted_rows = rows.permuted;
  sizes.probability_bytes = size_of(statistics_dtype(compute));
  sizes.shared_experts = moe.shared_ffn_hidden_size > 0;
  return sizes;
}

nn::LayerEdges captured_edges(const config::RunPlan& plan, Index layer) {
  return capture::edges_of(config::graph_scopes(plan), {.moe = plan.model.moe.is_moe_layer(layer)});
}

PlannedGraphs plan_graphs(const config::RunPlan& plan, int rank) {
  // Where graphs copy messages, slots are of other sizes, so chunks may share them where they do not without graphs.
  DryEngine eager(plan, rank, GraphMode::none), by_slot(plan, rank, GraphMode::layers, GraphsPer::slot);
  const CapturedLayers captured = captured_layers(eager->stage(), plan);
  const capture::RankLayers& layers = captured.rank;
  const pipeline::ScheduleShape& shape = layers.shape;
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
  r.owned = owned_buffers(captured);
  r.plan = eager->planned_bytes();
  r.fragmentation_bytes = eager->fragmentation_bytes();
  const config::RunPlan of_steps = config::iteration_plan(plan);
  if (!config::why_no_iteration(of_steps).empty()) return r;
  // With another dispatcher eager steps have another plan, too.
  DryEngine by_step(of_steps, rank, GraphMode::iteration), by_op(of_steps, rank, GraphMode::none);
  const bool has_evaluation = plan.data.has_valid() && config::why_no_evaluation_graph(of_steps).empty();
  r.iteration = {kOneGraph, has_evaluation ? 1 : 0, total(by_step->planned_bytes()) - total(by_op->planned_bytes())};
  return r;
}

bool GraphAccount::is_like(const GraphAccount& other) const {
  const auto numbers = [](const GraphAccount& a) {
    return std::array{a.planned_graphs, a.planned_launches, a.added_bytes, a.scratch_bytes, a.fragmentation_bytes,
                      a.graphs,         a.launches,         a.ops,         a.nodes,         a.comm_calls,
                      a.device_bytes};
  };
  return numbers(*this) == numbers(other) && owned == other.owned && touched == other.touched;
}

std::vector<GraphAccount> account_for_graphs(Engine& engine, const config::RunPlan& plan) {
  comm::World& world = engine.world();
  const bool of_layers = plan.graphs.mode == GraphMode::layers;
  const CapturedLayers layers = captured_layers(engine.stage(), plan);
  const capture::GraphCounts planned =
      of_layers ? count_graphs(layers.rank, engine.stage().schedule(), plan.graphs.per) : kOneGraph;
  // What the run would plan without graphs is the only thing that its engine does not know.
  DryEngine eager(plan, world.rank(), GraphMode::none);
  const CapturedGraphs captured = engine.captured_graphs();
  GraphAccount mine{.planned_graphs = planned.graphs,
                    .planned_launches = planned.launches_per_step,
                    .added_bytes = total(engine.planned_bytes()) - total(eager->planned_bytes()),
                    .scratch_bytes = engine.taken_bytes().at(kScratchOwner),
                    .fragmentation_bytes = engine.fragmentation_bytes(),
                    .graphs = captured.stats.graphs,
                    .launches = captured.launches_per_step,
                    .ops = captured.stats.ops,
                    .nodes = captured.stats.nodes,
                    .comm_calls = captured.comm_calls_per_step,
                    .device_bytes = captured.device_bytes,
                    .capture_s = captured.stats.capture_s,
                    .instantiate_s = captured.stats.instantiate_s,
                    .launch_s = captured.launch_s};
  if (of_layers) {
    mine.owned = owned_buffers(layers);
    mine.touched = capture::touched_memory(engine.layer_graphs(), engine.taken_memory());
  } else if (engine.train_graph().captured()) {
    mine.touched = capture::touched_memory(engine.train_graph().graph(), engine.taken_memory());
  }
  if (engine.eval_graph().captured()) ++mine.planned_graphs;
  return comm::gather_values(world.all(), mine);
}

std::string graphs_tables(const std::vector<GraphAccount>& ranks, GraphMode mode) {
  const std::vector<std::size_t> printed = printed_ranks(ranks);
  return counts_table(ranks, printed) + (mode == GraphMode::layers ? edges_table(ranks, printed) : "") +
         places_tables(ranks);
}

}  // namespace megalith::train
