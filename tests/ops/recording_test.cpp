#include <cmath>

#include "megalith/runtime/memory_plan.h"

#include "tests/ops/op_test.h"
#include "tests/ops/small_moe_step.h"

namespace megalith::ops {
namespace {

TEST(OpsRecording, PlannedRunEqualsUnplannedRun) {
  Recording recording;
  recording.begin_phase();
  SmallModel model;
  {
    Exec recorder(Device::cpu, recording);
    small_step(recorder, model);  // null addresses: an op that looked at data now would crash
  }
  const MemoryPlan plan = make_plan(recording);
  const Buffer scratch(plan.scratch_bytes);
  Exec planned;
  planned.poison_new_tensors();
  planned.begin(plan.phases[0], nullptr, scratch.data());
  small_step(planned, model);
  planned.end();

  SmallModel again;
  Exec unplanned;
  small_step(unplanned, again);
  EXPECT_EQ(values_of(model.loss_sum), values_of(again.loss_sum));
  EXPECT_EQ(values_of(model.table_grad), values_of(again.table_grad));
  EXPECT_EQ(values_of(model.gamma_grad), values_of(again.gamma_grad));
  EXPECT_EQ(values_of(model.qkv_weight), values_of(again.qkv_weight));
  EXPECT_EQ(values_of(model.squares), values_of(again.squares));
  EXPECT_GT(values_of(model.loss_sum)[0], 0);
}

TEST(OpsRecording, PlannedMixtureOfExpertsEqualsUnplannedOne) {
  Recording recording;
  recording.begin_phase();
  const SmallMoe model, again;
  {
    Exec recorder(Device::cpu, recording);
    small_moe_step(recorder, model);
  }
  const MemoryPlan plan = make_plan(recording);
  const Buffer scratch(plan.scratch_bytes);
  Exec planned;
  planned.poison_new_tensors();
  planned.begin(plan.phases[0], nullptr, scratch.data());
  small_moe_step(planned, model);
  planned.end();
  Exec unplanned;
  small_moe_step(unplanned, again);
  EXPECT_EQ(*model.echo.hash.data<std::int64_t>(), *again.echo.hash.data<std::int64_t>());
  EXPECT_EQ(values_of(model.loss), values_of(again.loss));
  EXPECT_EQ(values_of(model.up_grad), values_of(again.up_grad));
  EXPECT_EQ(values_of(model.down_grad), values_of(again.down_grad));
  EXPECT_EQ(values_of(model.gamma_grad), values_of(again.gamma_grad));
  EXPECT_EQ(values_of(model.d_logits), values_of(again.d_logits));
  EXPECT_EQ(values_of(model.d_hidden), values_of(again.d_hidden));
  EXPECT_GT(values_of(model.loss)[0], 0);
  EXPECT_NE(values_of(model.d_hidden), Values(kTokens * kHidden, 0.0));
  // A row of no group that reached a result would make it NaN.
  for (const Tensor& result : {model.up_grad, model.down_grad, model.d_logits, model.d_hidden}) {
    for (const double value : values_of(result)) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(OpsRecording, ChecksShapesWhileRecording) {
  Recording recording;
  recording.begin_phase();
  Exec recorder(Device::cpu, recording);
  const Tensor x = recorder.tensor({3, 4}, DType::f32), ids = recorder.tensor({3, 4}, DType::i32);
  EXPECT_EQ(error_text([&] { add_bias(recorder, x, x); }), "[add_bias.bias] shape = [3, 4]: must be [4]");
  EXPECT_EQ(error_text([&] { fill(recorder, ids, 1); }), "[fill] dtype = i32: needs f64, f32, bf16 or f16 on the CPU");
  EXPECT_TRUE(recording.ops().empty());
}

TEST(OpsRecording, AnExecWithoutItsDeviceThrows) {
  if (device::num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU and this build can use it";
  const std::string error = error_text([] { Exec cuda(Device::cuda); });
  EXPECT_TRUE(error.starts_with("device.type = cuda: this build has no CUDA backend") ||
              error.find("CUDA") != std::string::npos)
      << error;
}

}  // namespace
}  // namespace megalith::ops
