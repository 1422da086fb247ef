#include "megalith/train/verify_runs.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/ops/elementwise.h"
#include "megalith/train/saver.h"

namespace megalith::train {

bool RunsMeeting::arrive() {
  std::unique_lock lock(mutex_);
  const int round = round_;
  if (++arrived_ == ranks_) {
    arrived_ = 0;
    decided_ = decide_();
    ++round_;
    all_.notify_all();
    return decided_;
  }
  all_.wait(lock, [&] { return round_ != round || has_failed_; });
  if (round_ == round) throw AbortedError("[verify] the other grid has failed");
  return decided_;
}

void RunsMeeting::fail() {
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
  all_.notify_all();
}

SharedRouting::SharedRouting(const config::RunPlan& first, int ranks)
    : shape_(RouterTraceShape::of(first)),
      choices_(static_cast<std::size_t>(shape_.step_values())),
      meeting_(ranks, [] { return true; }),
      recorded_(*this, nn::RouterDecisions::Use::record),
      replayed_(*this, nn::RouterDecisions::Use::replay) {}

void SharedRouting::Choices::take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) {
  const std::lock_guard lock(routing_.mutex_);
  const auto kept = std::span(routing_.choices_).subspan(routing_.shape_.first_value(tokens), experts.size());
  if (use_ == Use::record)
    std::ranges::copy(experts, kept.begin());
  else
    std::ranges::copy(kept, experts.begin());
}

int VerifiedRuns::ranks() const {
  int ranks = 0;
  for (const config::RunPlan* const plan : plans) ranks += plan->grid.world_size;
  return ranks;
}

VerifiedRun::VerifiedRun(comm::World& world, const VerifyInputs& inputs, const VerifiedRuns& runs, std::size_t run)
    : plan_(*runs.plans[run]),
      routing_(runs.routing),
      run_(run),
      engine_(world, plan_),
      batches_(inputs.data.train_batches()) {
  engine_.allocate();
  if (routing_ != nullptr) engine_.stage().moe().decisions = &routing_->of_run(run);
  if (inputs.init.empty()) return;
  Saver(engine_, plan_, inputs.identity, inputs.fs, {}).take_values(inputs.init);
}

StepReport VerifiedRun::own_step() {
  StepReport report = engine_.step(*batches_, progress_, Stop::no);
  progress_ = {progress_.step + 1, progress_.samples + plan_.train.batch_after(progress_.samples)};
  return report;
}

StepReport VerifiedRun::step() {
  if (routing_ == nullptr) return own_step();
  StepReport report;
  std::exception_ptr non_finite;
  routing_->run(run_, [&] {
    try {
      report = own_step();
    } catch (const NonFiniteError&) {
      non_finite = std::current_exception();
    }
  });
  if (non_finite) std::rethrow_exception(non_finite);
  return report;
}

void VerifiedRun::record_step(RankOps& ops) {
  for (ParamBuffer& buffer : engine_.stage().params().buffers())
    if (buffer.has_gradients()) ops::fill(engine_.exec(), buffer.grads(), 0);
  OpRecorder recorder(engine_, ops);
  try {
    engine_.exec().watched(recorder, [&] { step(); });
  } catch (const NonFiniteError&) {  // that of the step which is examined
  }
  recorder.note_last_writers();
}

void run_all(const VerifiedRuns& runs, const std::function<void(comm::World&, std::size_t run)>& body,
             const std::function<void()>& on_failure) {
  std::vector<std::exception_ptr> failures(runs.plans.size());
  const auto start = [&](std::size_t run) {
    try {
      const config::RunPlan& plan = *runs.plans[run];
      comm::run_ranks(plan.grid.world_size,
                      [&](comm::World& world) {
                        try {
                          body(world, run);
                        } catch (...) {
                          on_failure();
                          throw;
                        }
                      },
                      {plan.timeout_s});
    } catch (...) {
      failures[run] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (std::size_t run = 1; run < runs.plans.size(); ++run) others.emplace_back(start, run);
  start(0);
  for (std::thread& other : others) other.join();
  std::exception_ptr aborted;
  for (const std::exception_ptr& failure : failures) {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const AbortedError&) {
      aborted = failure;
    }
  }
  if (aborted) std::rethrow_exception(aborted);
}

}  // namespace megalith::train
