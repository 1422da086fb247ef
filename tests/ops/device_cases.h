#pragma once
#include <optional>
#include <string>

#include "tests/support/twin.h"

namespace megalith::ops {

/// What an op on a device and in a dtype may differ from the f64 loops of the CPU, relative to the largest value.
struct DeviceRow {
  Device device;
  DType dtype;
  double once;         ///< where only the result is rounded
  double twice;        ///< where an intermediate is too
  double log_sum_exp;  ///< of attention
};

/// Every op against the oracle, the same bodies for all devices and dtypes (device_cases.cpp,
/// device_rounding_cases.cpp); instantiated with the rows of a device by its test executable.
class DeviceOps : public ::testing::TestWithParam<DeviceRow> {
 protected:
  void SetUp() override {
    if (GetParam().device == Device::cuda) MEGALITH_NEEDS_GPUS(1);
    twins_.emplace(GetParam().device, GetParam().dtype);
  }
  testing::Twins& t() { return *twins_; }
  void expect_same(const testing::Twin& twin, const char* what) { expect_close(twin, what, GetParam().once); }
  void expect_twice_rounded(const testing::Twin& twin, const char* what) { expect_close(twin, what, GetParam().twice); }
  void expect_close(const testing::Twin& twin, const char* what, double tolerance) {
    EXPECT_LE(t().error(twin), tolerance) << what;
  }

  std::optional<testing::Twins> twins_;
};

inline std::string name_of_row(const ::testing::TestParamInfo<DeviceRow>& row) {
  return std::string(name_of(row.param.device)) + "_" + std::string(name_of(row.param.dtype));
}

}  // namespace megalith::ops
