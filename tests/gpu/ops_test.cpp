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

// What resolve() lets a recipe ask of a GPU (config/run_plan.cpp), by vectors and number by number.
TEST(GpuNorms, TakeRowsUpToTheirLimitAndNoLonger) {
  MEGALITH_NEEDS_GPUS(1);
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 5e-6}, std::pair{DType::bf16, 1e-2}}) {
    testing::Twins twins(Device::cuda, dtype);
    for (const Index columns : {kMostNormColumnsOnGpu, kMostNormColumnsOnGpu - 1}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << columns << " columns");
      constexpr Index kRows = 9;
      const testing::Twin x = twins.in({kRows, columns}, 1, 2), gamma = twins.in({columns}, 2),
                          beta = twins.in({columns}, 3), dy = twins.in({kRows, columns}, 4);
      const testing::Twin y = twins.out({kRows, columns}), mean = twins.out_f32({kRows}), rstd = twins.out_f32({kRows});
      const testing::Twin dx = twins.out({kRows, columns}), gamma_grad = twins.in_f32({columns}, 5),
                          beta_grad = twins.in_f32({columns}, 6);
      twins.run([&](Exec& ex) {
        layer_norm_forward(ex, {.x = x.on(ex),
                                .gamma = gamma.on(ex),
                                .beta = beta.on(ex),
                                .y = y.on(ex),
                                .mean = mean.on(ex),
                                .rstd = rstd.on(ex)});
        layer_norm_backward(ex, {.dy = dy.on(ex),
                                 .x = x.on(ex),
                                 .gamma = gamma.on(ex),
                                 .mean = mean.on(ex),
                                 .rstd = rstd.on(ex),
                                 .residual = {},
                                 .dx = dx.on(ex),
                                 .gamma_grad = gamma_grad.on(ex),
                                 .beta_grad = beta_grad.on(ex)});
      });
      for (const testing::Twin& result : {y, dx}) EXPECT_LT(twins.error(result), tolerance);
      for (const testing::Twin& sums : {gamma_grad, beta_grad}) EXPECT_LT(twins.error(sums), 1e-5);
      twins.release();
    }
  }
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
