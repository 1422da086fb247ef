// Counts operator new while a recorded and planned step of ops runs: there must be none after the first time. A program
// of its own, because it replaces operator new.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/ops/small_step.h"

namespace {
thread_local bool counting = false;
thread_local long allocations = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  using namespace megalith;
  const ops::SmallModel model;
  Recording recording;
  recording.begin_phase();
  {
    Exec recorder(Device::cpu, recording);
    ops::small_step(recorder, model);
  }
  const MemoryPlan plan = make_plan(recording);
  const Buffer scratch(plan.scratch_bytes);
  Exec ex;
  for (int time = 0; time < 3; ++time) {
    counting = time > 0;
    ex.begin(plan.phases[0], nullptr, scratch.data());
    ops::small_step(ex, model);
    ex.end();
    counting = false;
  }
  if (allocations == 0) return 0;
  std::fprintf(stderr, "2 steps of ops called operator new %ld times: must be 0\n", allocations);
  return 1;
}
