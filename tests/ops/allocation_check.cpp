// Counts operator new while a recorded and planned step of ops runs: there must be none after the first time. A program
// of its own, because it replaces operator new.
#include <cstdio>

#include "tests/ops/small_moe_step.h"
#include "tests/support/count_allocations.h"

int main() {
  using namespace megalith;
  const ops::SmallModel model;
  const ops::SmallMoe moe;
  Recording recording;
  recording.begin_phase();
  {
    Exec recorder(Device::cpu, recording);
    ops::small_step(recorder, model);
    ops::small_moe_step(recorder, moe);
  }
  const MemoryPlan plan = make_plan(recording);
  const Buffer scratch(plan.scratch_bytes);
  Exec ex;
  long allocations = 0;
  for (int time = 0; time < 3; ++time) {
    const support::CountAllocations counter;
    ex.begin(plan.phases[0], nullptr, scratch.data());
    ops::small_step(ex, model);
    ops::small_moe_step(ex, moe);
    ex.end();
    if (time > 0) allocations += counter.count();
  }
  if (allocations == 0) return 0;
  std::fprintf(stderr, "2 steps of ops called operator new %ld times: must be 0\n", allocations);
  return 1;
}
