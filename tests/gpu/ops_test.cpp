#include "tests/ops/device_cases.h"

namespace megalith::ops {
namespace {

// bf16 rounds by at most 2^-8 of a number, once or twice on the way (its intermediates too), f16 by 2^-11.
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceOps,
                         ::testing::Values(DeviceRow{Device::cuda, DType::f32, 5e-6, 5e-6, 1e-5},
                                           DeviceRow{Device::cuda, DType::bf16, 1e-2, 1e-2, 1e-3},
                                           DeviceRow{Device::cuda, DType::f16, 2e-3, 2e-3, 1e-3}),
                         name_of_row);

}  // namespace
}  // namespace megalith::ops
