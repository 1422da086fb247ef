#pragma once
#include <optional>
#include <string>

#include "megalith/ops/cpu/product.h"
#include "megalith/ops/qkv_order.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/gpu_pretence.h"

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

/// The step of every op that draws random numbers or scales a loss.
inline constexpr StepState kDeviceState{.step = 5, .first_sample = 7, .loss_scale = 0.25};

/// Every op against the oracle, the same bodies for all devices and dtypes (device_cases.cpp,
/// device_attention_cases.cpp, device_rounding_cases.cpp); instantiated with the rows of a device by its test
/// executable.
struct TurnedHeads;  // device_block_cases.cpp

class DeviceOps : public ::testing::TestWithParam<DeviceRow> {
 protected:
  void SetUp() override {
    if (GetParam().device == Device::cuda) MEGALITH_NEEDS_GPUS(1);
    twins_.emplace(GetParam().device, GetParam().dtype);
  }
  support::Twins& t() { return *twins_; }
  void expect_same(const support::Twin& twin, const char* what) { expect_close(twin, what, GetParam().once); }
  /// The tolerance of attention's result for whole samples. A CPU that multiplies bf16 also rounds probabilities.
  double of_attention() const {
    const bool rounds_p = GetParam().device == Device::cpu && GetParam().dtype == DType::bf16;
    return rounds_p && cpu::has_bf16_product() ? GetParam().twice : GetParam().once;
  }
  void expect_twice_rounded(const support::Twin& twin, const char* what) { expect_close(twin, what, GetParam().twice); }
  void expect_close(const support::Twin& twin, const char* what, double tolerance) {
    EXPECT_LE(t().error(twin), tolerance) << what;
  }

  void expect_rope_as_oracle(const TurnedHeads& heads, QkvOrder attended);

  std::optional<support::Twins> twins_;
};

struct AttentionKind;  // device_attention_cases.cpp

/// Attention of every kind of mask, lengths and groups.
class DeviceAttention : public DeviceOps {
 protected:
  /// The padding of a tensor [B*S, columns] becomes NaN.
  void spoil_padding(const support::Twin& twin, const AttentionKind& kind);
  /// The padding of a result [parts * S, columns], of which a sample has `per_sample` parts.
  void expect_zero_padding(const support::Twin& twin, const AttentionKind& kind, Index per_sample, const char* what);
  bool same_bits(const support::Twin& a, const support::Twin& b);
  void expect_as_oracle(const AttentionKind& kind);
  void expect_all_as_oracle(double probability);
};

/// What is pretended is no more when this goes.
class Pretending {
 public:
  explicit Pretending(const device::Pretence& pretence) { device::pretend(pretence); }
  ~Pretending() { device::pretend({}); }
  Pretending(const Pretending&) = delete;
  Pretending& operator=(const Pretending&) = delete;
};

inline std::string name_of_row(const ::testing::TestParamInfo<DeviceRow>& row) {
  return std::string(name_of(row.param.device)) + "_" + std::string(name_of(row.param.dtype));
}

}  // namespace megalith::ops
