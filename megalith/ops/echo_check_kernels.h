#pragma once
#include "megalith/ops/echo_check.h"

namespace megalith::ops {

// hashes: (R) : (1) i64.  experts: (R, n, K) : (n K, K, 1).  src, cap: (R, S) : (S, 1).
// take: (R, R, S) : (R S, S, 1).  found: (kPlanDifference) : (1) i64.

namespace cpu {
void check_echo_plans(const CheckEchoPlans& args);
}  // namespace cpu

namespace cuda {
void check_echo_plans(Stream stream, const CheckEchoPlans& args);
}  // namespace cuda

}  // namespace megalith::ops
