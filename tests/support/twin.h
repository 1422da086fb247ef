#pragma once
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/philox.h"
#include "megalith/ops/init.h"
#include "megalith/runtime/exec.h"
#include "megalith/runtime/step_state.h"

namespace megalith::support {

/// Skips a GPU test where there is no GPU.
#define MEGALITH_NEEDS_GPUS(count)  \
  if (device::num_gpus() < (count)) \
  GTEST_SKIP() << "needs " << (count) << " GPUs, this machine has " << device::num_gpus()

/// What stands in a tensor of `ex`'s device, in f64.
inline std::vector<double> values_on(Exec& ex, const Tensor& tensor) {
  Exec host;
  const Tensor raw = host.tensor(tensor.shape(), tensor.dtype()), wide = host.tensor(tensor.shape(), DType::f64);
  ex.copy(raw.raw(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  ops::cast(host, raw, wide);
  const std::span<double> values = wide.span<double>();
  return {values.begin(), values.end()};
}

/// The same tensor twice: in f64 for the loops that are the oracle, and on the device and in the dtype under test.
struct Twin {
  Tensor oracle, tested;
  const Exec* oracle_exec = nullptr;
  const Tensor& on(const Exec& ex) const { return &ex == oracle_exec ? oracle : tested; }
};

/// One op twice: the f64 loops of the CPU are the oracle. Inputs are rounded to the dtype under test first, so that
/// both sides compute from the same numbers.
class Twins {
 public:
  Twins(Device device, DType dtype) : dtype_(dtype), tested_(device) {
    oracle_.poison_new_tensors();
    tested_.poison_new_tensors();
  }
  DType dtype() const { return dtype_; }
  Exec& oracle() { return oracle_; }
  Exec& tested() { return tested_; }

  /// Random numbers in (-scale, scale).
  Twin in(const Shape& shape, std::uint32_t stream, double scale = 1) {
    return filled(shape, stream, {0, scale}, dtype_);
  }
  /// For a gradient, a statistic or a master value: f32 on the side under test.
  Twin in_f32(const Shape& shape, std::uint32_t stream, double scale = 1) {
    return filled(shape, stream, {0, scale}, DType::f32);
  }
  /// In [0, 1), f32 on the side under test: a second moment.
  Twin positive_f32(const Shape& shape, std::uint32_t stream) { return filled(shape, stream, {0.5, 0.5}, DType::f32); }
  Twin out(const Shape& shape) { return make(shape, DType::f64, dtype_); }
  Twin out_f32(const Shape& shape) { return make(shape, DType::f64, DType::f32); }
  /// [1] f64 on both.
  Twin scalar(double value) { return bytes_of(&value, {1}, DType::f64); }
  Twin ids(const std::vector<std::int32_t>& values) {
    return bytes_of(values.data(), {static_cast<Index>(values.size())}, DType::i32);
  }
  template <class T>
  Twin structure(const T& value) {
    return bytes_of(&value, {Index{sizeof value}}, DType::u8);
  }
  Twin bytes_of(const void* data, const Shape& shape, DType dtype) {
    const Twin twin = make(shape, dtype, dtype);
    oracle_.copy(twin.oracle.raw(), data, twin.oracle.bytes());
    tested_.copy(twin.tested.raw(), data, twin.tested.bytes());
    tested_.synchronize();
    return twin;
  }

  /// Runs op(ex) on both.
  template <class Op>
  void run(Op&& op) {
    op(oracle_);
    op(tested_);
    tested_.synchronize();
  }

  /// What stands on the side under test, in f64.
  std::vector<double> read(const Tensor& tensor) { return values_on(tested_, tensor); }

  /// Rounded to the dtype under test.
  std::vector<double> rounded(std::vector<double> values) {
    Exec host;
    const Tensor wide(values.data(), {static_cast<Index>(values.size())}, DType::f64),
        narrow = host.tensor(wide.shape(), dtype_);
    ops::cast(host, wide, narrow);
    ops::cast(host, narrow, wide);
    return values;
  }

  /// The largest difference over the largest value of the oracle (at least 1e-3); NaN gives infinity.
  double error(const Twin& twin) {
    const std::vector<double> got = read(twin.tested);
    const std::span<const double> want = twin.oracle.span<double>();
    double largest = 1e-3, difference = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i]) != std::isnan(got[i])) return std::numeric_limits<double>::infinity();
      if (std::isfinite(want[i]) || std::isfinite(got[i]))
        difference = std::max(difference, std::abs(got[i] - want[i]));
    }
    return difference / largest;
  }

  void release() {
    oracle_.release();
    tested_.release();
  }

 private:
  Twin make(const Shape& shape, DType of_oracle, DType of_tested) {
    return {oracle_.tensor(shape, of_oracle), tested_.tensor(shape, of_tested), &oracle_};
  }
  struct Range {
    double middle, half;
  };
  Twin filled(const Shape& shape, std::uint32_t stream, const Range& range, DType of_tested) {
    const Twin twin = make(shape, DType::f64, of_tested);
    const RandomSite site{.seed = 1, .site = stream};
    const std::span<double> values = twin.oracle.span<double>();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = range.middle + range.half * (static_cast<double>(site.word(i)) / 2147483648.0 - 1.0);
    Exec host;
    const Tensor rounded = host.tensor(shape, of_tested);
    ops::cast(host, twin.oracle, rounded);
    ops::cast(host, rounded, twin.oracle);
    tested_.copy(twin.tested.raw(), rounded.raw(), rounded.bytes());
    tested_.synchronize();
    return twin;
  }

  DType dtype_;
  Exec oracle_, tested_;
};

}  // namespace megalith::support
