#include <algorithm>
#include <cstring>
#include <functional>

#include "megalith/ops/echo_check_kernels.h"
#include "megalith/ops/echo_plan_kernels.h"

namespace megalith::ops::cpu {

void check_echo_plans(const CheckEchoPlans& args) {
  StepState state;
  std::memcpy(&state, args.step_state.raw(), sizeof state);
  const std::span<const std::int64_t> hashes = args.hashes.span<std::int64_t>();
  if (!has_hash(state, args.every) || std::ranges::adjacent_find(hashes, std::not_equal_to()) == hashes.end()) return;
  const std::span<std::int64_t> found = args.found.span<std::int64_t>();
  const auto at = [](PlanDifference which) { return static_cast<std::size_t>(which); };
  if (found[at(PlanDifference::found)] == 0) {
    found[at(PlanDifference::found)] = 1;
    found[at(PlanDifference::chunk)] = args.chunk;
    found[at(PlanDifference::layer)] = args.layer;
    found[at(PlanDifference::first_sample)] = static_cast<std::int64_t>(state.first_sample);
    std::ranges::copy(hashes, found.begin() + static_cast<std::ptrdiff_t>(at(PlanDifference::hashes)));
  }
  std::ranges::fill(args.experts.span<std::int32_t>(), -1);
  std::ranges::fill(args.src.span<std::int32_t>(), -1);
  for (const Tensor& pairs : {args.cap, args.take}) std::ranges::fill(pairs.span<std::int32_t>(), 0);
}

}  // namespace megalith::ops::cpu
