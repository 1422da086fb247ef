#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "megalith/nn/moe/router_decisions.h"
#include "megalith/train/engine.h"
#include "megalith/train/grid_verify.h"
#include "megalith/train/op_record.h"
#include "megalith/train/router_trace_file.h"

namespace megalith::train {

/// Where the ranks of all runs meet. The last one to come calls `decide`, while the others wait.
class RunsMeeting {
 public:
  RunsMeeting(int ranks, std::function<bool()> decide) : ranks_(ranks), decide_(std::move(decide)) {}

  /// Returns what `decide` has. Throws AbortedError if a rank has failed.
  bool arrive();
  void fail();

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int ranks_, arrived_ = 0, round_ = 0;
  bool decided_ = true, has_failed_ = false;
  std::function<bool()> decide_;
};

/// The choices of all routers in a step of run 0. The other runs wait for them, and repeat them.
class SharedRouting {
 public:
  SharedRouting(const config::RunPlan& first, int ranks);

  nn::RouterDecisions& of_run(std::size_t run) { return run == 0 ? recorded_ : replayed_; }
  /// Runs step() of a rank: those of the other runs after those of run 0.
  template <class Step>
  void run(std::size_t run, const Step& step) {
    if (run != 0) meeting_.arrive();
    step();
    if (run == 0) meeting_.arrive();
    meeting_.arrive();  // the next step of run 0 overwrites the choices
  }
  void fail() { meeting_.fail(); }

 private:
  class Choices final : public nn::RouterDecisions {
   public:
    Choices(SharedRouting& routing, Use use) : routing_(routing), use_(use) {}

   private:
    Use use() const override { return use_; }
    /// Ranks of tp that hold the same tokens write the same choices.
    void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override;
    SharedRouting& routing_;
    Use use_;
  };

  RouterTraceShape shape_;
  std::mutex mutex_;
  std::vector<std::int32_t> choices_;
  RunsMeeting meeting_;
  Choices recorded_, replayed_;
};

/// The runs of one comparison: those of the two grids and, where rounding is measured, a third one on the first grid.
struct VerifiedRuns {
  std::vector<const config::RunPlan*> plans;
  SharedRouting* routing = nullptr;  ///< null: every run routes by itself

  int ranks() const;
};

/// One rank of a run, step by step, as Trainer makes them.
class VerifiedRun {
 public:
  VerifiedRun(comm::World& world, const VerifyInputs& inputs, const VerifiedRuns& runs, std::size_t run);

  Engine& engine() { return engine_; }
  /// With shared routing a step that is not finite also lets the other runs go on.
  StepReport step();
  /// A step whose ops are recorded. One that is not finite ends early.
  void record_step(RankOps& ops);

 private:
  StepReport own_step();

  const config::RunPlan& plan_;
  SharedRouting* routing_;
  std::size_t run_;
  Engine engine_;
  std::unique_ptr<model::BatchSource> batches_;
  Progress progress_;
};

/// Calls body() on all ranks of all runs at the same time. on_failure() must let ranks of the other runs go on. Throws
/// the first failure that another run's has not caused.
void run_all(const VerifiedRuns& runs, const std::function<void(comm::World&, std::size_t run)>& body,
             const std::function<void()>& on_failure);

}  // namespace megalith::train
