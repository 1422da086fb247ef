#include "megalith/train/graph_check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "megalith/base/build.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/synchronize_ranks.h"
#include "megalith/train/host_memory.h"

namespace megalith::train {
namespace {

/// `mine`: what this rank has found to differ between a run from graphs and an eager one. If a rank has found anything,
/// throws the same InternalError on all. It names the difference that a step writes first and its rank, followed by
/// `remark`.
void refuse_differences(comm::World& world, const std::string& what,
                        const std::optional<capture::MemoryCopy::Difference>& mine, std::string_view remark) {
  struct Found {
    bool any = false;
    StepOrder order;
    std::array<char, 256> text{};
  };
  Found here;
  if (mine) {
    here.any = true;
    here.order = mine->order;
    mine->text.copy(here.text.data(), here.text.size() - 1);
  }
  const std::vector<Found> all = comm::gather_values(world.all(), here);
  const auto first =
      std::ranges::min_element(all, {}, [](const Found& found) { return std::pair(!found.any, found.order); });
  if (!first->any) return;
  throw InternalError(str("rank ", first - all.begin(), ": [graphs] ", what, ": ", first->text.data(),
                          " differs between graphs and an eager run, and is the first of all that differs: what "
                          "changes from step to step must come from memory, at the addresses of the capture, not by "
                          "value",
                          remark));
}

/// While it lives, graphs have an observer.
class Observed {
 public:
  Observed(GraphCache& graphs, GraphCache::Observer observer) : graphs_(graphs) {
    graphs_.set_observer(std::move(observer));
  }
  ~Observed() { graphs_.set_observer({}); }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  GraphCache& graphs_;
};

}  // namespace

GraphCheck::GraphCheck(comm::World& world, const config::RunPlan& plan, const MemoryLedger& ledger, GraphCache& layers,
                       std::function<MemoryNames()> names)
    : world_(world), plan_(plan), ledger_(ledger), layers_(layers), names_(std::move(names)) {}

void GraphCheck::require_memory() const {
  if (plan_.graphs.mode == capture::GraphMode::none || plan_.graphs.check_steps == 0) return;
  const bool has_witness = plan_.graphs.mode == capture::GraphMode::layers;
  const std::string lack = lack_of_host_memory(
      world_, capture::MemoryCopy::host_bytes(compared()) + (has_witness ? capture::SegmentWitness::host_bytes() : 0),
      str("graphs.check = ", plan_.graphs.check_steps),
      "run fewer ranks on a host, a smaller model or train.micro_batch, or graphs.check = 0");
  if (!lack.empty()) throw ConfigError(lack);
}

GraphCheck::Checked GraphCheck::turn(Index runs_before) const {
  const Index since_capture = runs_before - plan_.graphs.warmup_steps;
  if (plan_.graphs.mode == capture::GraphMode::none || since_capture <= 0) return Checked::no;
  if (since_capture <= plan_.graphs.check_steps) return Checked::results;
  // Debug builds check a run in any case: its results on the CPU only, as a GPU's steps need not be deterministic.
  if (!build::is_debug || since_capture > 1) return Checked::no;
  return plan_.device == Device::cpu ? Checked::results : Checked::calls;
}

std::vector<MemoryLedger::Block> GraphCheck::compared() const {
  std::vector<MemoryLedger::Block> pieces;
  std::ranges::copy_if(ledger_.blocks(), std::back_inserter(pieces),
                       [](const MemoryLedger::Block& piece) { return piece.owner != kScratchOwner; });
  return pieces;
}

void GraphCheck::run_twice(Exec& ex, const RunName& name, const std::function<void(Via)>& run) {
  // Between two runs ranks synchronise: transports read and write the others' memory.
  comm::synchronize_ranks(world_, ex, "before memory is kept for graphs.check");
  if (!copy_) copy_.emplace(plan_.device, compared());
  GraphCache::Observer see;
  if (plan_.graphs.mode == capture::GraphMode::layers) {
    if (!witness_) witness_.emplace(plan_.device, compared(), plan_.model.num_layers);
    witness_->keep_from_here();
    see = [this](Exec& of, const GraphCache::Key& key, const Graph& graph) {
      world_.wait_for(of);  // where another rank fails, this one is told
      witness_->see(of, key, graph);
    };
  }
  const Observed observed(layers_, std::move(see));
  copy_->keep(ex);
  comm::synchronize_ranks(world_, ex, "before the checked run from graphs");
  run(Via::graphs);
  comm::synchronize_ranks(world_, ex, "after the checked run from graphs");
  copy_->exchange(ex);
  if (witness_) witness_->compare_from_here();
  comm::synchronize_ranks(world_, ex, "before the eager run of graphs.check");
  run(Via::eager);
  comm::synchronize_ranks(world_, ex, "after the eager run of graphs.check");
  const bool of_steps = plan_.graphs.mode == capture::GraphMode::iteration;
  refuse_differences(world_, name.text(), first_difference(ex),
                     of_steps
                         ? ". Memory shows the last microbatch that wrote there: an earlier one may be the first to "
                           "differ, which graphs.mode = layers would name"
                         : "");
}

std::optional<capture::MemoryCopy::Difference> GraphCheck::first_difference(Exec& ex) {
  auto in_memory = copy_->first_difference(ex, names_);
  if (!witness_) return in_memory;
  auto in_pieces = witness_->first_difference(names_);
  return in_pieces && (!in_memory || in_pieces->order < in_memory->order) ? in_pieces : in_memory;
}

void GraphCheck::put_name(Error& error, const RunName& name) const {
  const bool names_it = std::string_view(error.what()).find(name.text()) != std::string_view::npos;
  if (plan_.graphs.mode != capture::GraphMode::none && !names_it) error.put_in_front(name.text() + ": ");
}

}  // namespace megalith::train
