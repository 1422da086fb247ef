#include "tests/ops/op_test.h"

#include <cmath>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/team.h"

namespace megalith::ops {

double weighted(const Values& y, const Values& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
  return sum;
}

Tensor OpTest::put(const Shape& shape, const Values& values, DType type) {
  const Tensor tensor = ex_.tensor(shape, type);
  EXPECT_EQ(tensor.numel(), static_cast<Index>(values.size()));
  dispatch_float(type, "test", [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) tensor.data<T>()[i] = converted<T>(values[i]);
  });
  return tensor;
}

Tensor OpTest::put_ids(const std::vector<std::int32_t>& ids) {
  const Tensor tensor = ex_.tensor({static_cast<Index>(ids.size())}, DType::i32);
  std::copy(ids.begin(), ids.end(), tensor.data<std::int32_t>());
  return tensor;
}

Tensor OpTest::put_state(const StepState& state) {
  const Tensor tensor = ex_.tensor({Index{sizeof state}}, DType::u8);
  std::memcpy(tensor.raw(), &state, sizeof state);
  return tensor;
}

void OpTest::expect_near(const Tensor& got, const Values& want, const char* what) const {
  ASSERT_EQ(got.numel(), static_cast<Index>(want.size())) << what;
  EXPECT_LE(relative_error(values_of(got), want), GetParam().tolerance) << what;
}

Values random_values(Index count, std::uint32_t seed, double scale) {
  const RandomSite site{.seed = 1, .step = 0, .site = seed};
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(scale * (static_cast<double>(site.word(i)) / 2147483648.0 - 1.0));
  }
  return values;
}

Values values_of(const Tensor& tensor) {
  Values values(static_cast<std::size_t>(tensor.numel()));
  dispatch_float(tensor.dtype(), "test", [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = converted<double>(tensor.data<T>()[i]);
  });
  return values;
}

double relative_error(const Values& got, const Values& want) {
  double largest = 1e-3, error = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
  }
  return error / largest;
}

std::string error_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_same_bits_for_any_team(const std::function<Values()>& run) {
  const auto run_with = [&](int threads) {
    const TeamSize team(threads);
    return run();
  };
  const Values want = run_with(1);
  for (const int threads : {2, 3}) {
    const Values got = run_with(threads);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(double)), 0) << threads << " threads";
  }
}

Values numeric_gradient(const Values& x, const std::function<double(const Values&)>& loss) {
  Values gradient(x.size()), moved = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + kStep;
    const double above = loss(moved);
    moved[i] = x[i] - kStep;
    gradient[i] = (above - loss(moved)) / (2 * kStep);
    moved[i] = x[i];
  }
  return gradient;
}

}  // namespace megalith::ops
