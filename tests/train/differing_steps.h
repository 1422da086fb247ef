#pragma once
#include <functional>
#include <string>
#include <utility>

#include "megalith/base/error.h"

#include "tests/train/graph_ways.h"
#include "tests/train/meddling_batches.h"

// Runs whose steps are checked against eager ones (graphs.check), one of which is made to differ.
namespace megalith::support {

/// Before these steps graphs are captured, and before kMeddled steps that agree are checked.
inline constexpr Index kCheckWarmup = 2, kMeddled = kCheckWarmup + 3;

/// Done by every rank before a step: its engine, its rank, the step from 0.
using MeddleWithStep = std::function<void(train::Engine&, int, Index)>;

/// The error that ends a run of `plan`, of ranks that `run_ranks` runs.
inline std::string error_of(RunRanks run_ranks, const config::RunPlan& plan, const MeddleWithStep& meddle,
                            const model::BatchSource& source) {
  try {
    run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      for (Index step = 0; step < plan.train.steps; ++step) {
        meddle(engine, world.rank(), step);
        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      }
    });
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

/// What two parameters' views show, changed places: host code that runs again follows, graphs do not.
inline void swap_views(train::Engine& engine, const char* a, const char* b, Tensor Param::*view) {
  ParamBuffer& params = engine.stage().params().dense();
  std::swap(params.at(a).*view, params.at(b).*view);
}

/// When the eager run of a checked step asks for a microbatch.
inline Index of_eager_run(const config::RunPlan& plan, Index microbatch) {
  return plan.train.global_batch / plan.train.micro_batch / plan.grid.dp + microbatch + 1;
}
/// For its last one.
inline Index last_of_eager_run(const config::RunPlan& plan) {
  return 2 * plan.train.global_batch / plan.train.micro_batch / plan.grid.dp;
}

/// A parameter's value somewhere else: what is captured then cannot be launched later.
inline void move_out_of_the_plan(train::Engine& engine, const char* name, Buffer& memory) {
  Tensor& value = engine.stage().params().at(name).value;
  memory = Buffer(value.bytes(), engine.exec().device());
  engine.exec().copy(memory.data(), value.raw(), value.bytes());
  engine.exec().synchronize();
  value = memory.view(value.shape(), value.dtype());
}

}  // namespace megalith::support
