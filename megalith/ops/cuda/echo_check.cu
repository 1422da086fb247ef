#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/echo_check_kernels.h"
#include "megalith/ops/echo_plan_kernels.h"

// One block. It reads 8 bytes of each rank, and nothing more where these agree: most of its time is the launch. Where
// they differ it also writes all choices and the plan, once in the life of a run.

namespace megalith::ops::cuda {
namespace {

constexpr int kCheckThreads = 256;

struct CheckedPlans {
  const std::int64_t* hashes;
  const StepState* state;
  std::int32_t *experts, *src, *cap, *take;
  std::int64_t* found;
  Index every, pairs, layer;
  int ranks, all_slots, chunk;

  __device__ std::int64_t& number(PlanDifference which) const { return found[static_cast<int>(which)]; }
};

__device__ void fill_by_block(std::int32_t* numbers, Index count, std::int32_t value) {
  for (Index i = threadIdx.x; i < count; i += kCheckThreads) numbers[i] = value;
}

__global__ void __launch_bounds__(kCheckThreads) check_echo_plans_kernel(const CheckedPlans x) {
  if (!has_hash(*x.state, x.every)) return;
  const int i = static_cast<int>(threadIdx.x);
  static_assert(kCheckThreads >= kMaxEchoRanks);
  const bool differs = i < x.ranks && x.hashes[i] != x.hashes[0];
  const bool is_first = x.number(PlanDifference::found) == 0;  // all threads read it before one writes it
  if (__syncthreads_or(differs ? 1 : 0) == 0) return;
  if (is_first) {
    if (i < x.ranks) x.found[static_cast<int>(PlanDifference::hashes) + i] = x.hashes[i];
    if (i == 0) {
      x.number(PlanDifference::found) = 1;
      x.number(PlanDifference::chunk) = x.chunk;
      x.number(PlanDifference::layer) = x.layer;
      x.number(PlanDifference::first_sample) = static_cast<std::int64_t>(x.state->first_sample);
    }
  }
  fill_by_block(x.experts, x.pairs, -1);
  fill_by_block(x.src, x.all_slots, -1);
  fill_by_block(x.cap, x.all_slots, 0);
  fill_by_block(x.take, Index{x.ranks} * x.all_slots, 0);
}

}  // namespace

void check_echo_plans(Stream stream, const CheckEchoPlans& args) {
  launch({stream, 1, kCheckThreads}, check_echo_plans_kernel,
         CheckedPlans{.hashes = pointer<const std::int64_t>(args.hashes),
                      .state = pointer<const StepState>(args.step_state),
                      .experts = pointer<std::int32_t>(args.experts),
                      .src = pointer<std::int32_t>(args.src),
                      .cap = pointer<std::int32_t>(args.cap),
                      .take = pointer<std::int32_t>(args.take),
                      .found = pointer<std::int64_t>(args.found),
                      .every = args.every,
                      .pairs = args.experts.numel(),
                      .layer = args.layer,
                      .ranks = static_cast<int>(args.hashes.numel()),
                      .all_slots = static_cast<int>(args.src.numel()),
                      .chunk = args.chunk});
}

}  // namespace megalith::ops::cuda
