#include "tests/ops/device_cases.h"

namespace megalith::ops {
namespace {

/// The CPU computes 16-bit tensors in f32 and rounds a result once, by at most half a unit of its last place, which
/// relative to the number is 2^-8 in bf16 and 2^-11 in f16. f32 sums add up to 1e-5.
constexpr DeviceRow row_of(DType dtype, double unit) {
  return {Device::cpu, dtype, unit + 1e-5, 2 * unit + 1e-5, 1e-5};
}
const auto kRows = ::testing::Values(row_of(DType::bf16, 0x1p-8), row_of(DType::f16, 0x1p-11));
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceOps, kRows, name_of_row);
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceAttention, kRows, name_of_row);

}  // namespace
}  // namespace megalith::ops
