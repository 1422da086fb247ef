#include "megalith/runtime/exec.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith {
namespace {

/// y = 2 x + 1 in two ops with one intermediate.
Tensor twice_plus_one(Exec& ex, const Tensor& x) {
  const Tensor doubled = ex.tensor(x.shape(), x.dtype());
  ex.run({.name = "double", .reads = {x}, .writes = {doubled}},
         [&](Exec&, Stream) { doubled.data<double>()[0] = 2 * x.data<double>()[0]; });
  const Tensor y = ex.tensor(x.shape(), x.dtype());
  ex.run({.name = "increment", .reads = {doubled}, .writes = {y}},
         [&](Exec&, Stream) { y.data<double>()[0] = doubled.data<double>()[0] + 1; });
  return y;
}

TEST(Exec, RunsAsRecordedAtPlannedAddresses) {
  double input = 20;
  const Tensor x(&input, {1}, DType::f64);
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  twice_plus_one(recorder, Tensor(nullptr, {1}, DType::f64));
  const MemoryPlan plan = make_plan(recording);
  Buffer scratch(plan.scratch_bytes);
  Exec ex;
  for (int repeat = 0; repeat < 3; ++repeat) {
    ex.begin(plan.phases[0], nullptr, scratch.data());
    const Tensor y = twice_plus_one(ex, x);
    ex.end();
    EXPECT_EQ(y.data<double>()[0], 41);
    EXPECT_GE(static_cast<std::byte*>(y.raw()), scratch.data());
    EXPECT_LT(static_cast<std::byte*>(y.raw()), scratch.data() + scratch.bytes());
  }
}

TEST(Exec, WithoutAPlanTensorsComeFromTheHeap) {
  double input = 1;
  Exec ex;
  EXPECT_EQ(twice_plus_one(ex, Tensor(&input, {1}, DType::f64)).data<double>()[0], 3);
  ex.release();
}

TEST(Exec, APhaseThatRunsOtherwiseIsAnError) {
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  twice_plus_one(recorder, Tensor(nullptr, {1}, DType::f64));
  const MemoryPlan plan = make_plan(recording);
  Buffer scratch(plan.scratch_bytes);
  Exec ex;
  ex.begin(plan.phases[0], nullptr, scratch.data());
  EXPECT_THROW(ex.tensor({2}, DType::f64), InternalError);  // another size
  EXPECT_THROW(ex.end(), InternalError);                    // fewer tensors
}

TEST(Exec, OpsAsideAreNoPartOfThePhase) {
  Tensor seen;
  int unplanned = 0;
  const auto pass = [&](Exec& ex, const Tensor& x) {
    ex.unplanned([&] { ex.run({.name = "aside", .reads = {x}, .writes = {}}, [&](Exec&, Stream) { ++unplanned; }); });
    seen = twice_plus_one(ex, x);
  };
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  pass(recorder, Tensor(nullptr, {1}, DType::f64));
  EXPECT_EQ(recording.ops().size(), 2u);
  EXPECT_EQ(unplanned, 0);
  const MemoryPlan plan = make_plan(recording);
  Buffer scratch(plan.scratch_bytes);
  double input = 2;
  Exec ex;
  ex.begin(plan.phases[0], nullptr, scratch.data());
  pass(ex, Tensor(&input, {1}, DType::f64));
  ex.end();
  EXPECT_EQ(unplanned, 1);
  EXPECT_EQ(seen.data<double>()[0], 5);
  EXPECT_EQ(ex.ops_run(), 3u);
}

TEST(Exec, PoisonMakesAReadBeforeAWriteVisible) {
  Exec ex;
  ex.poison_new_tensors();
  EXPECT_TRUE(std::isnan(ex.tensor({3}, DType::f32).data<float>()[2]));
  EXPECT_TRUE(std::isnan(ex.tensor({3}, DType::f64).data<double>()[0]));
}

TEST(Exec, NewTensorsMayBeZero) {
  Buffer memory(1024, Device::cpu);
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  recorder.tensor({16}, DType::f32);
  const MemoryPlan plan = make_plan(recording);
  std::memset(memory.data(), 0xff, 1024);
  Exec ex;
  ex.poison_new_tensors();
  EXPECT_EQ(ex.fill_new_tensors(NewTensors::zero), NewTensors::nan);
  ex.begin(plan.phases[0], memory.data(), memory.data());
  const Tensor tensor = ex.tensor({16}, DType::f32);
  ex.end();
  for (const float value : tensor.span<float>()) EXPECT_EQ(value, 0);
  EXPECT_EQ(ex.fill_new_tensors(NewTensors::undefined), NewTensors::zero);
}

}  // namespace
}  // namespace megalith
