// Graphs of whole iterations against the vectors of tests/data/graphs/full_iteration.json: how many there are, and what
// each call does.
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/test_data.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"

namespace megalith {
namespace {

using nlohmann::json;
using support::Grid;

json case_of(const std::string& id) {
  std::ifstream file(MEGALITH_TEST_DATA "/graphs/full_iteration.json");
  const json vectors = json::parse(file);
  for (const json& entry : vectors.at("cases")) {
    if (entry.at("id") == id) return entry;
  }
  ADD_FAILURE() << "no case " << id;
  return {};
}

config::RunPlan plan_of(const Grid& grid, Index microbatches, Index warmup_steps) {
  config::RunConfig config = support::small_config(grid, "fp32");
  config.model.num_layers = grid.pp * grid.chunks;
  config.model.hidden_size = 8;
  config.model.ffn_hidden_size = 8;
  config.model.num_heads = 2;
  config.model.seq_len = 2;
  config.train.global_batch = microbatches;
  config::RunPlan plan = config::resolve(config);
  plan.graphs.mode = capture::GraphMode::iteration;
  plan.graphs.warmup_steps = warmup_steps;
  return plan;
}

/// The two kinds of calls of one rank's engine.
class Calls {
 public:
  Calls(comm::World& world, const config::RunPlan& plan)
      : plan_(plan), engine_(world, plan), source_(plan.model.vocab_size) {
    engine_.allocate();
  }
  /// Returns the loss.
  double make(const std::string& mode) {
    if (mode != "training") return engine_.evaluate(source_, plan_.train.global_batch);
    const Index step = step_++;
    return engine_.step(source_, {step, step * plan_.train.global_batch}, train::Stop::no).loss;
  }
  const capture::StepGraph& graph(const std::string& mode) const {
    return mode == "training" ? engine_.train_graph() : engine_.eval_graph();
  }
  train::Engine& engine() { return engine_; }

 private:
  const config::RunPlan& plan_;
  train::Engine engine_;
  support::HashedBatches source_;
  Index step_ = 0;
};

TEST(GraphLifecycle, AProcessHasTwoGraphsWhateverIsInThem) {
  const json entry = case_of("S4-10");
  const json& input = entry.at("input");
  const auto modes = entry.at("expect").at("keys").get<std::vector<std::string>>();
  int shapes = 0;
  for (const int pp : input.at("pp")) {
    for (const int chunks : input.at("vpp")) {
      for (const int microbatches : input.at("num_microbatches")) {
        if (chunks > 1 && (pp == 1 || microbatches < pp)) continue;  // no such schedule
        const config::RunPlan plan = plan_of({.pp = pp, .chunks = chunks}, microbatches, 1);
        SCOPED_TRACE(str(pp, " stages, ", chunks, " chunks, ", microbatches, " microbatches"));
        ++shapes;
        comm::run_ranks(pp, [&](comm::World& world) {
          Calls calls(world, plan);
          for (int i = 0; i < 2; ++i) {
            for (const std::string& mode : modes) calls.make(mode);
          }
          for (const std::string& mode : modes) EXPECT_TRUE(calls.graph(mode).captured()) << mode;
          EXPECT_EQ(calls.engine().captured_graphs().stats.graphs, entry.at("expect").at("graphs_per_process"));
        });
      }
    }
  }
  EXPECT_EQ(shapes, 3 * 4 + 2 * 2 * 3);
}

/// What one call of a mode did, as far as it can be seen from outside: a capture stands between two barriers.
std::vector<std::string> actions_of(Calls& calls, const std::string& mode) {
  const capture::StepGraph& graph = calls.graph(mode);
  const auto barriers = [&] { return calls.engine().world().all().counters()[comm::Op::barrier].calls; };
  const bool was_captured = graph.captured();
  const Index launches_before = graph.launches().count(), barriers_before = barriers();
  calls.make(mode);
  const Index launches = graph.launches().count() - launches_before;
  if (!graph.captured()) {
    EXPECT_EQ(launches, 0);
    EXPECT_EQ(barriers(), barriers_before);
    return {"eager"};
  }
  EXPECT_EQ(launches, 1);
  if (was_captured) return {"launch"};
  EXPECT_EQ(barriers() - barriers_before, 2);
  return {"barrier", "capture", "barrier", "launch"};
}

TEST(GraphLifecycle, EachModeRunsEagerlyThenCapturesOnceThenLaunches) {
  const json entry = case_of("D-25");
  const config::RunPlan plan = plan_of({.pp = 2}, 4, entry.at("input").at("warmup_steps"));
  comm::run_ranks(2, [&](comm::World& world) {
    Calls calls(world, plan);
    std::map<std::string, int> iterations;
    json events = json::array();
    for (const std::string mode : entry.at("input").at("calls")) {
      const int iteration = iterations[mode]++;
      events.push_back({{"mode", mode}, {"mode_iteration", iteration}, {"actions", actions_of(calls, mode)}});
    }
    EXPECT_EQ(events, entry.at("expect").at("events"));
  });
}

TEST(GraphLifecycle, GraphsThatAreForgottenAreCapturedAnew) {
  for (const Grid& grid : {Grid{.tp = 2, .pp = 2}, Grid{.pp = 2, .dp = 2, .chunks = 2}}) {
    const auto want = support::run_forgetting(support::small_plan(grid, "bf16", 12), false);
    for (const support::GraphWay& way : support::kGraphWays) {
      SCOPED_TRACE(grid.name() + " " + way.name);
      const config::RunPlan plan = support::with_graphs(support::small_plan(grid, "bf16", 12), way, 2);
      support::expect_same_training(*support::run_forgetting(plan, true), *want);
    }
  }
}

}  // namespace
}  // namespace megalith
