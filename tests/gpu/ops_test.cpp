#include "megalith/base/error.h"
#include "megalith/ops/norm.h"

#include "tests/io/temp_dir.h"
#include "tests/ops/device_cases.h"

namespace megalith::ops {
namespace {

// bf16 rounds by at most 2^-8 of a number, once or twice on the way (its intermediates too), f16 by 2^-11.
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceOps,
                         ::testing::Values(DeviceRow{Device::cuda, DType::f32, 5e-6, 5e-6, 1e-5},
                                           DeviceRow{Device::cuda, DType::bf16, 1e-2, 1e-2, 1e-3},
                                           DeviceRow{Device::cuda, DType::f16, 2e-3, 2e-3, 1e-3}),
                         name_of_row);

// What resolve() lets a recipe ask of a GPU (config/run_plan.cpp), which DeviceOps.Norms takes, and no more.
TEST(GpuNorms, TakeNoRowsOverTheirLimit) {
  MEGALITH_NEEDS_GPUS(1);
  Exec ex(Device::cuda);
  const Index columns = kMostNormColumnsOnGpu + 1;
  const Tensor x = ex.tensor({1, columns}, DType::f32), row = ex.tensor({columns}, DType::f32),
               statistic = ex.tensor({1}, DType::f32);
  const auto run = [&] {
    layer_norm_forward(ex, {.x = x, .gamma = row, .beta = row, .y = x, .mean = statistic, .rstd = statistic});
  };
  EXPECT_EQ(error_of<BackendError>(run),
            "[norm] columns = 16385: must be at most 16384 on a GPU; use a smaller hidden size");
}

}  // namespace
}  // namespace megalith::ops
