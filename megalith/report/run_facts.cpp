#include "megalith/report/run_facts.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text_table.h"
#include "megalith/pipeline/simulate.h"
#include "megalith/report/plan_report.h"
#include "megalith/train/graph_accounting.h"
#include "megalith/train/run_memory.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxDrawnRanks = 512;
constexpr Index kMaxDrawnActions = 1200, kMaxSimulated = Index{1} << 18;

std::string memory_json(const config::RunPlan& plan) {
  const std::vector<BytesByOwner> ranks = plan_each_rank(plan);
  ordered_json rows = ordered_json::array();
  for (const EqualRanks& equal : equal_ranks(ranks)) {
    ordered_json bytes = ordered_json::object();
    for (const auto& [owner, size] : *equal.bytes) {
      if (size > 0) bytes[owner] = size;
    }
    rows.push_back({{"ranks", stretches(equal.ranks)}, {"bytes", std::move(bytes)}});
  }
  return ordered_json{{"rows", std::move(rows)}, {"measured", train::measured_owners(plan)}}.dump();
}

bool is_legal(const pipeline::ScheduleShape& shape) {
  Problems problems;
  check_shape(shape, problems);
  return problems.empty();
}

Index actions_of(const pipeline::ScheduleShape& shape) { return Index{2} * total_work(shape) * shape.num_stages; }

/// The most microbatches, up to those of the whole, that make a legal schedule of a size to be drawn; 0: none.
int drawn_microbatches(const pipeline::ScheduleShape& whole) {
  pipeline::ScheduleShape shape = whole;
  const Index of_one = Index{2} * whole.num_chunks * whole.num_stages;
  shape.num_microbatches = static_cast<int>(std::min<Index>(whole.num_microbatches, kMaxDrawnActions / of_one));
  while (shape.num_microbatches > 0 && !is_legal(shape)) --shape.num_microbatches;
  return std::max(0, shape.num_microbatches);
}

/// Times are in forward passes of a chunk, whole numbers; a backward pass takes two.
pipeline::Simulation simulated(const pipeline::ScheduleShape& shape) {
  const double chunks = shape.num_chunks;
  return simulate(shape, {.forward = chunks, .backward = 2 * chunks});
}

}  // namespace

std::string schedule_json(const pipeline::ScheduleShape& whole) {
  ordered_json out = {{"kind", name(kind_of(whole))},
                      {"stages", whole.num_stages},
                      {"chunks", whole.num_chunks},
                      {"microbatches", whole.num_microbatches}};
  if (actions_of(whole) <= kMaxSimulated) {
    const double ideal = 3.0 * total_work(whole), all = simulated(whole).makespan;
    out["idle_percent"] = std::round(1000 * (all - ideal) / all) / 10;
  }
  pipeline::ScheduleShape drawn = whole;
  drawn.num_microbatches = drawn_microbatches(whole);
  out["drawn"] = drawn.num_microbatches;
  ordered_json stages = ordered_json::array();
  if (drawn.num_microbatches > 0) {
    for (const pipeline::StageResult& stage : simulated(drawn).stages) {
      ordered_json spans = ordered_json::array();
      for (const pipeline::Span& span : stage.timeline) {
        const int sign = span.action.act == pipeline::Act::forward ? 1 : -1;
        spans.push_back({std::lround(span.start), sign * (span.action.chunk + 1), span.action.microbatch});
      }
      stages.push_back(std::move(spans));
    }
  }
  out["spans"] = std::move(stages);
  return out.dump();
}

std::string grid_json(const config::RunPlan& plan) {
  const grid::ResolvedSizes& s = plan.grid;
  const grid::RankGenerator dense = grid::dense_grid(s), expert = grid::expert_grid(s);
  ordered_json ranks = ordered_json::array();
  for (int rank = 0; rank < std::min(s.world_size, kMaxDrawnRanks); ++rank) {
    const grid::PerAxis d = dense.coordinates(rank), e = expert.coordinates(rank);
    ranks.push_back({d.tp, d.cp, d.dp, d.pp, e.tp, e.ep, e.dp});
  }
  ordered_json out = {{"world", s.world_size},
                      {"dense", {{"tp", s.tp}, {"cp", s.cp}, {"dp", s.dp}, {"pp", s.pp}}},
                      {"ranks", std::move(ranks)}};
  if (plan.model.moe.has_experts()) out["expert"] = {{"etp", s.etp}, {"ep", s.ep}, {"edp", s.edp}, {"pp", s.pp}};
  return out.dump();
}

RunFacts run_facts(io::Fs& fs, const io::Path& out) {
  RunFacts facts;
  const io::Path file = out / "recipe.toml";
  try {
    const config::RunConfig asked = config::read_recipe(fs.map(file).text(), file.string());
    for (auto& [key, value] : config::toml_values(asked)) facts.recipe.emplace_back(key, std::move(value));
    const config::RunPlan plan = config::resolve(asked);
    facts.planned_steps = plan.train.steps;
    facts.title = str(plan.model.num_layers, " layers x ", plan.model.hidden_size, ", ",
                      model::parameters_text(plan.model), "; grid ", config::grid_text(plan), "; ",
                      plan.train.precision, " on ", plan.device == Device::cpu ? "CPUs" : "GPUs");
    facts.grid = grid_json(plan);
    facts.schedule = schedule_json(train::training_shape(plan));
    facts.memory = memory_json(plan);
  } catch (const Error& error) {
    facts.problem = error.what();
  }
  return facts;
}

}  // namespace megalith::apps
