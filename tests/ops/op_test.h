#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/ops/elementwise.h"
#include "megalith/runtime/exec.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

using Values = std::vector<double>;

/// A dtype and the error that its op may show against f64 loops, relative to the largest value of the result.
struct Precision {
  DType dtype = DType::f64;
  double tolerance = 0;
};

/// The sum of y[i] * weights[i]: a loss whose gradient of y is `weights`.
double weighted(const Values& y, const Values& weights);

/// Every op test runs over these rows. f32 sums of a few hundred terms of size 1 stay within 2e-6 of their largest
/// value.
class OpTest : public testing::TestWithParam<Precision> {
 protected:
  OpTest() { ex_.poison_new_tensors(); }
  DType dtype() const { return GetParam().dtype; }

  /// New tensors are full of NaN bytes: an op that leaves a hole is seen.
  Tensor empty(const Shape& shape) { return ex_.tensor(shape, dtype()); }
  Tensor put(const Shape& shape, const Values& values) { return put(shape, values, dtype()); }
  Tensor put(const Shape& shape, const Values& values, DType type);
  Tensor put_ids(const std::vector<std::int32_t>& ids);
  Tensor put_state(const StepState& state);
  void expect_near(const Tensor& got, const Values& want, const char* what) const;

  Exec ex_;
};

#define MEGALITH_OPS_PRECISIONS(Suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Precisions, Suite,                                                          \
                           testing::Values(Precision{DType::f64, 1e-13}, Precision{DType::f32, 2e-6}), \
                           [](const auto& row) { return std::string(name_of(row.param.dtype)); })

/// Numbers in (-scale, scale) that f32 holds exactly, from `seed`.
Values random_values(Index count, std::uint32_t seed, double scale = 1);
Values values_of(const Tensor& tensor);
/// The largest |got - want| over the largest |want| (at least 1e-3); NaN in got gives infinity.
double relative_error(const Values& got, const Values& want);

/// The text of the ShapeError, InputError or BackendError that `call` throws; "" when it throws nothing.
std::string error_text(const std::function<void()>& call);

/// Calls `run` with teams of 1, 2 and 3 threads and compares the bytes it returns.
void expect_same_bits_for_any_team(const std::function<Values()>& run);

inline constexpr double kStep =
    1e-5;  // of central differences in f64: error about 1e-10 of the second derivative's size

/// d loss / d x by central differences, element by element.
Values numeric_gradient(const Values& x, const std::function<double(const Values&)>& loss);

}  // namespace megalith::ops
