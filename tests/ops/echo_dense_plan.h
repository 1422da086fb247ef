#pragma once
#include "tests/ops/echo_plans.h"

namespace megalith::ops {

struct DensePlan {
  Ints src, cap, take;
};

/// A second planner, slow and plain: it forms every matrix of the stages, and sorts by pairs.
DensePlan dense_plan(const EchoCase& of);

}  // namespace megalith::ops
