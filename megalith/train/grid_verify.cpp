#include "megalith/train/grid_verify.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/ops/elementwise.h"
#include "megalith/train/saver.h"
#include "megalith/train/step_values.h"

namespace megalith::train {
namespace {

/// Where the ranks of both grids meet after each step. The last one to come compares, while the others wait.
class StepMeeting {
 public:
  StepMeeting(int ranks, std::function<bool()> compare) : ranks_(ranks), compare_(std::move(compare)) {}

  /// Returns whether to go on. Throws AbortedError if a rank of the other grid has failed.
  bool arrive() {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      goes_on_ = compare_();
      ++round_;
      all_.notify_all();
      return goes_on_;
    }
    all_.wait(lock, [&] { return round_ != round || has_failed_; });
    if (round_ == round) throw AbortedError("[verify] the other grid has failed");
    return goes_on_;
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    all_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int ranks_, arrived_ = 0, round_ = 0;
  bool goes_on_ = true, has_failed_ = false;
  std::function<bool()> compare_;
};

/// One rank of a run, step by step, as Trainer makes them.
class VerifiedRun {
 public:
  VerifiedRun(comm::World& world, const config::RunPlan& plan, const VerifyInputs& inputs)
      : plan_(plan), engine_(world, plan), batches_(inputs.data.train_batches()) {
    engine_.allocate();
    if (inputs.init.empty()) return;
    Saver(engine_, plan, inputs.identity, inputs.fs, {}).take_values(inputs.init);
  }

  Engine& engine() { return engine_; }
  StepReport step() {
    StepReport report = engine_.step(*batches_, progress_, Stop::no);
    progress_ = {progress_.step + 1, progress_.samples + plan_.train.batch_after(progress_.samples)};
    return report;
  }
  /// A step whose ops are recorded. One that is not finite ends early.
  void record_step(RankOps& ops) {
    for (ParamBuffer& buffer : engine_.stage().params().buffers())
      if (buffer.has_gradients()) ops::fill(engine_.exec(), buffer.grads(), 0);
    OpRecorder recorder(engine_, ops);
    try {
      engine_.exec().watched(recorder, [&] { step(); });
    } catch (const NonFiniteError&) {  // that of the step which is examined
    }
  }

 private:
  const config::RunPlan& plan_;
  Engine engine_;
  std::unique_ptr<model::BatchSource> batches_;
  Progress progress_;
};

using OnRank = std::function<void(comm::World&, int grid)>;

/// Runs both grids at the same time. Throws the first failure that the other grid's has not caused.
void run_both(const VerifyInputs& inputs, const OnRank& body, const std::function<void()>& on_failure) {
  std::array<std::exception_ptr, 2> failures;
  const auto run = [&](int grid) {
    try {
      const config::RunPlan& plan = *inputs.plans[static_cast<std::size_t>(grid)];
      comm::run_ranks(plan.grid.world_size,
                      [&](comm::World& world) {
                        try {
                          body(world, grid);
                        } catch (...) {
                          on_failure();
                          throw;
                        }
                      },
                      {plan.timeout_s});
    } catch (...) {
      failures[static_cast<std::size_t>(grid)] = std::current_exception();
    }
  };
  std::thread second([&] { run(1); });
  run(0);
  second.join();
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

/// All steps, up to the first that differs.
void compare_steps(const VerifyInputs& inputs, const VerifyBands& bands, VerifyResult& result) {
  std::array<StepValues, 2> values;
  std::array<std::string, 2> non_finite;
  const auto compare = [&] {
    ++result.steps;
    if (!non_finite[0].empty() && !non_finite[1].empty()) throw NonFiniteError(non_finite[0]);
    result.losses.push_back(values[0].loss);
    result.different = compare_values(values[0], values[1], result.steps, bands, result.largest);
    for (StepValues& side : values) side.clear();
    inputs.progress(result.steps);
    return result.different.empty() && result.steps < inputs.steps;
  };
  const int ranks = inputs.plans[0]->grid.world_size + inputs.plans[1]->grid.world_size;
  StepMeeting meeting(ranks, compare);
  run_both(
      inputs,
      [&](comm::World& world, int grid) {
        const auto side = static_cast<std::size_t>(grid);
        VerifiedRun run(world, *inputs.plans[side], inputs);
        do {
          double loss = std::numeric_limits<double>::quiet_NaN(), norm = loss;
          std::string problem;
          try {
            const StepReport report = run.step();
            loss = report.loss;
            norm = report.grad_norm;
          } catch (const NonFiniteError& error) {
            problem = error.what();
          }
          values[side].put(run.engine());
          if (world.rank() == 0) {
            values[side].loss = loss;
            values[side].grad_norm = norm;
            non_finite[side] = problem;
          }
        } while (meeting.arrive());
      },
      [&] { meeting.fail(); });
}

/// Widths of the parts of a row that tp cuts one by one.
OpLayouts layouts_of(const model::ModelConfig& model) {
  return {.num_layers = model.num_layers,
          .vocab_size = model.vocab_size,
          .blocks = {{model.num_heads, model.kv_heads(), model.kv_heads()}, {1, 1}}};
}

/// The ops of a step, recorded while both grids train again up to it.
void compare_step_ops(const VerifyInputs& inputs, const VerifyBands& bands, Index step, VerifyResult& result) {
  std::array<std::vector<RankOps>, 2> ops;
  for (std::size_t grid = 0; grid < ops.size(); ++grid)
    ops[grid].resize(static_cast<std::size_t>(inputs.plans[grid]->grid.world_size));
  run_both(
      inputs,
      [&](comm::World& world, int grid) {
        const auto side = static_cast<std::size_t>(grid);
        VerifiedRun run(world, *inputs.plans[side], inputs);
        for (Index before = 1; before < step; ++before) run.step();
        run.record_step(ops[side][static_cast<std::size_t>(world.rank())]);
      },
      [] {});
  result.ops = compare_ops(ops[0], ops[1], layouts_of(inputs.plans[0]->model), bands.results);
  for (std::size_t grid = 0; grid < ops.size(); ++grid) {
    std::set<std::string> names;
    for (const RankOps& rank : ops[grid])
      for (const std::size_t number : rank.last_on_gradients) names.insert(rank.ops[number].key.op);
    result.on_gradients[grid].assign(names.begin(), names.end());
  }
}

/// Whether the passes of a step, or the sums after them, must be looked at.
bool is_of_passes(const VerifyResult& result) {
  return std::ranges::any_of(result.different, [](const ValueDifference& value) {
    return value.name == "loss" || value.name.starts_with(kGradientOf);
  });
}

}  // namespace

VerifyBands verify_bands(const std::string& precision, TpDiffers tp, optim::MomentType moments) {
  if (moments == optim::MomentType::bf16 && precision != "fp64") {
    VerifyBands bands = verify_bands(precision, tp, optim::MomentType::f32);
    bands.first_moments = 0;
    return bands;
  }
  if (precision == "fp64") {
    return {.first_loss = 1e-12,
            .first_norm = 1e-12,
            .first_gradients = 1e-12,
            .losses = 1e-12,
            .norms = 1e-12,
            .gradients = 1e-10,
            .first_moments = 1e-10,
            .state = 1e-10,
            .results = 1e-11};
  }
  if (precision == "fp32") {
    return {.first_loss = 1e-6,
            .first_norm = 1e-6,
            .first_gradients = 1e-5,
            .losses = 1e-5,
            .norms = 1e-3,
            .first_moments = 4e-5,
            .results = 1e-4};
  }
  // A moment is a gradient, or its square, times the clip factor.
  const double wider = precision == "bf16" ? 1 : 0.125, step1 = precision == "bf16" ? 1 : 0.1;
  if (tp == TpDiffers::yes) {
    return {.first_loss = 1e-4 * step1,
            .first_norm = 5e-3 * step1,
            .first_gradients = 4e-2 * wider,
            .losses = 5e-4 * step1,
            .norms = 5e-3 * step1,
            .first_moments = 16e-2 * wider,
            .results = 4e-2 * wider};
  }
  return {.first_loss = 1e-12,
          .first_norm = 5e-4,
          .first_gradients = 1e-6,
          .losses = 1e-4,
          .norms = 5e-4,
          .first_moments = 4e-6,
          .results = 1e-6};
}

VerifyResult verify_grids(const VerifyInputs& inputs) {
  const config::RunPlan &a = *inputs.plans[0], &b = *inputs.plans[1];
  VerifyBands bands =
      verify_bands(a.train.precision, a.grid.tp == b.grid.tp ? TpDiffers::no : TpDiffers::yes, a.optimizer.moments);
  if (a.optimizer.type == optim::OptimizerType::muon)
    bands.first_gradients = bands.gradients = 0;  // it overwrites them
  VerifyResult result;
  compare_steps(inputs, bands, result);
  if (!result.agree() && is_of_passes(result))
    compare_step_ops(inputs, bands, result.steps, result);
  else if (inputs.ops_of_step > 0)
    compare_step_ops(inputs, bands, inputs.ops_of_step, result);
  return result;
}

}  // namespace megalith::train
