#pragma once
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/train/small_run.h"

namespace megalith::support {

/// The error of body(engine), which all ranks of a plan call with their engines, and which must be the same on all;
/// empty: none.
template <class Body>
std::string error_on_ranks(const config::RunPlan& plan, Body&& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(plan.grid.world_size));
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    try {
      body(engine);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]) << "all ranks have the same";
  return errors[0];
}

}  // namespace megalith::support
