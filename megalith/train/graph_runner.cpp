#include "megalith/train/graph_runner.h"

#include <limits>
#include <optional>
#include <utility>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/synchronize_ranks.h"
#include "megalith/config/moe_rules.h"

namespace megalith::train {
namespace {

bool uses_step_graph(const config::RunPlan& plan) { return plan.graphs.mode == capture::GraphMode::iteration; }

/// Evaluations of models with experts may be eager where their steps are graphs.
bool uses_eval_graph(const config::RunPlan& plan) {
  return uses_step_graph(plan) && config::why_no_evaluation_graph(plan).empty();
}

/// A warm-up that never comes to an end: that of runs without a graph.
constexpr Index kEndless = std::numeric_limits<Index>::max();

}  // namespace

comm::CallsBehindGraphs calls_behind_graphs(const config::RunPlan& plan) {
  return plan.graphs.mode == capture::GraphMode::layers ? comm::CallsBehindGraphs::may_come
                                                        : comm::CallsBehindGraphs::never;
}

GraphRunner::GraphRunner(RunMemory& memory, StepProgram& program)
    : memory_(memory),
      program_(program),
      plan_(memory.plan()),
      train_graph_("training", uses_step_graph(plan_) ? plan_.graphs.warmup_steps : kEndless),
      eval_graph_("evaluation", uses_eval_graph(plan_) ? plan_.graphs.warmup_steps : kEndless),
      check_(memory.world(), plan_, memory.ledger(), layer_graphs_, [&memory] { return memory.names(); }) {}

GraphCache::State GraphRunner::state(Via via) const {
  const Index since_warmup = graph_steps() - plan_.graphs.warmup_steps;
  if (plan_.graphs.mode == capture::GraphMode::none || since_warmup < 0) return GraphCache::State::eager;
  if (via == Via::eager) return GraphCache::State::comparing;
  return since_warmup == 0 ? GraphCache::State::capturing : GraphCache::State::replaying;
}

void GraphRunner::begin_layer_graphs(GraphCache::State state) {
  if (steps_ == 0) {
    layer_graphs_.start("training", memory_.ledger().memory());
    memory_.stage().run_segments_from(layer_graphs_);
  }
  layer_graphs_.set_state(state);
}

template <class Ops>
void GraphRunner::run_capturing(Ops&& ops) {
  comm::synchronize_ranks(memory_.world(), memory_.exec(), "before graphs are captured");
  const Index before = device::memory_in_use(plan_.device);
  ops();
  graph_bytes_ += device::memory_in_use(plan_.device) - before;
  comm::synchronize_ranks(memory_.world(), memory_.exec(), "after graphs were captured");
  std::uint64_t sum = 0;
  for (const std::uint64_t term : comm::gather_values(memory_.world().all(), memory_.world().agreement_term()))
    sum += term;
  if (sum == 0) return;
  throw CollectiveError(
      "[capture] the ranks disagree about the collectives that their graphs hold, or that came before them: no graph "
      "is launched, parameters stay as they are");
}

CapturedGraphs GraphRunner::captured() const {
  CapturedGraphs captured{
      .stats = layer_graphs_.stats(),
      .launches_per_step = static_cast<Index>(layer_graphs_.order().size()),
      .device_bytes = graph_bytes_,
  };
  captured.stats += train_graph_.graph().stats();
  captured.stats += eval_graph_.graph().stats();
  for (const GraphCache::Key& key : layer_graphs_.order())
    captured.comm_calls_per_step += layer_graphs_.graph(key).stats().comm_calls;
  if (train_graph_.captured()) {
    captured.launches_per_step = 1;
    captured.comm_calls_per_step = train_graph_.graph().stats().comm_calls;
  }
  if (submits_ > 0) {
    captured.launch_s = launches_s_ / static_cast<double>(submits_);
    captured.submit_s = submits_s_ / static_cast<double>(submits_);
    captured.timed_steps = submits_;
  } else if (launches() > 0) {
    captured.launch_s =
        launching_s() * static_cast<double>(captured.launches_per_step) / static_cast<double>(launches());
  }
  return captured;
}

template <class Drop>
void GraphRunner::drop_graphs(Drop&& drop) {
  comm::synchronize_ranks(memory_.world(), memory_.exec(), "before graphs are dropped");
  const Index before = device::memory_in_use(plan_.device);
  layer_graphs_.clear();
  drop();
  graph_bytes_ -= before - device::memory_in_use(plan_.device);
}

void GraphRunner::forget() {
  drop_graphs([this] {
    train_graph_.reset();
    eval_graph_.reset();
  });
  forgotten_at_step_ = steps_;
  forgotten_at_batch_ = batches_;
}

void GraphRunner::follow_batch() {
  const Index batch = memory_.stage().step_batch();
  if (std::exchange(batch_of_graphs_, batch) == batch || steps_with_graphs() == 0) return;
  drop_graphs([this] { train_graph_.drop(); });
  forgotten_at_step_ = steps_ - plan_.graphs.warmup_steps;  // the next step captures
}

template <class Ops, class BeforeLaunch>
void GraphRunner::run_by(capture::StepGraph& graph, Via via, Ops&& ops, BeforeLaunch&& before_launch) {
  if (via == Via::eager) return graph.run_beside(memory_.exec(), ops);
  // No rank launches while another captures.
  if (graph.captures_next()) run_capturing([&] { graph.capture(memory_.exec(), memory_.ledger().memory(), ops); });
  if (graph.captured()) before_launch();
  graph.run(memory_.exec(), memory_.ledger().memory(), ops);
}

comm::StepPattern* GraphRunner::pattern_of_step(GraphCache::State state) {
  if (state == GraphCache::State::capturing) return nullptr;
  const Index batch = memory_.stage().step_batch();
  return state == GraphCache::State::replaying ? &calls_beside_graphs_[batch] : &eager_calls_[batch];
}

void GraphRunner::run_ops(const AskRequests& ask, Via via) {
  const GraphCache::State now = state(via);
  std::optional<comm::WatchedStep> watched;
  if (comm::StepPattern* const pattern = pattern_of_step(now))
    watched.emplace(memory_.world(), *pattern, memory_.exec());
  const auto upload = [&] { program_.upload(ask()); };
  const auto vote_and_update = [&] {
    program_.vote();
    if (watched) watched->end();
    program_.update();
  };
  if (plan_.graphs.mode == capture::GraphMode::layers) {
    begin_layer_graphs(now);
    if (now == GraphCache::State::capturing) {
      run_capturing([this] {
        program_.passes();
        comm::synchronize_ranks(memory_.world(), memory_.exec(), "before graphs are prepared");
        layer_graphs_.prepare(memory_.exec());
      });
    } else {
      program_.passes();
    }
    layer_graphs_.end_step();
  } else if (!uses_step_graph(plan_)) {
    program_.passes();
  } else if (plan_.graphs.optimizer) {
    const auto step = [&] {
      program_.passes();
      if (memory_.exec().capture() == nullptr) upload();  // a graph cannot hold it: it comes before the launch
      vote_and_update();
    };
    run_by(train_graph_, via, step, upload);
    if (watched) watched->end();
    return;
  } else {
    run_by(
        train_graph_, via, [this] { program_.passes(); }, [] {});
  }
  upload();
  vote_and_update();
}

void GraphRunner::run_step(Index step, const AskRequests& ask) {
  if (plan_.graphs.mode != capture::GraphMode::none) follow_batch();
  const double begin = monotonic_s(), launched_s = launching_s();
  const Index launched = launches();
  const GraphCheck::Checked checked = check_.turn(graph_steps());
  std::optional<Requests> answer;  // one, also where graphs.check runs the step twice
  const auto ask_once = [&] { return answer ? *answer : answer.emplace(ask()); };
  check_.run(memory_.exec(), {"step", step}, checked, [&](Via via) { run_ops(ask_once, via); });
  if (checked == GraphCheck::Checked::results) ++steps_checked_;
  if (check_.turn(graph_steps() + 1) == GraphCheck::Checked::no) check_.release();
  ++steps_;
  if (steps_with_graphs() == 1) ++captures_;
  // The first launch may be in the step of the capture.
  if (launched == 0 || launches() == launched || checked != GraphCheck::Checked::no) return;
  submits_s_ += monotonic_s() - begin;
  launches_s_ += launching_s() - launched_s;
  ++submits_;
}

void GraphRunner::vote_in_rounds(const Requests& requests) {
  memory_.stage().set_exchange(nn::RowExchange::in_rounds);
  program_.passes();
  memory_.stage().set_exchange(nn::RowExchange::at_once);
  program_.upload(requests);
  program_.vote();
}

void GraphRunner::run_in_rounds(const Requests& requests) {
  vote_in_rounds(requests);
  program_.update();
}

void GraphRunner::measure_rows() {
  vote_in_rounds({});
  memory_.exec().set_call_site({});
}

void GraphRunner::run_passes_eagerly(nn::RowExchange exchange) {
  layer_graphs_.set_state(GraphCache::State::eager);
  memory_.stage().set_exchange(exchange);
  program_.passes();
  memory_.stage().set_exchange(nn::RowExchange::at_once);
  memory_.exec().set_call_site({});
}

void GraphRunner::run_evaluation() {
  const auto checked = uses_eval_graph(plan_) ? check_.turn(graph_evaluations()) : GraphCheck::Checked::no;
  check_.run(memory_.exec(), {"evaluated batch", batches_ + 1}, checked, [this](Via via) {
    run_by(
        eval_graph_, via, [this] { program_.evaluate(); }, [] {});
  });
  ++batches_;
}

void GraphRunner::end_evaluation() {
  if (check_.turn(graph_steps()) == GraphCheck::Checked::no) check_.release();
}

}  // namespace megalith::train
