#include "megalith/params/non_finite.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/tensor/dtype.h"

namespace megalith {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
void expect_found(DType dtype) {
  std::vector<T> values(10'000, T(1.0F));
  const Tensor tensor(values.data(), {100, 100}, dtype);
  EXPECT_EQ(non_finite_value(tensor), std::nullopt);
  values[9999] = T(-std::numeric_limits<float>::quiet_NaN());
  const double found = non_finite_value(tensor).value_or(0);
  EXPECT_TRUE(std::isnan(found) && !std::signbit(found)) << "the last one";
  values[4097] = T(-std::numeric_limits<float>::infinity());
  EXPECT_EQ(non_finite_value(tensor), -kInfinity) << "the first of two";
  EXPECT_EQ(non_finite_value(tensor.rows(0, 40)), std::nullopt);
}

TEST(NonFiniteValue, IsTheFirstOfATensor) {
  expect_found<double>(DType::f64);
  expect_found<float>(DType::f32);
  expect_found<bfloat16>(DType::bf16);
  expect_found<float16>(DType::f16);
  double large = std::numeric_limits<double>::max();
  EXPECT_EQ(non_finite_value(Tensor(&large, {1}, DType::f64)), std::nullopt) << "more than an f32 holds";
}

/// The names of the parameter that is first after each of `names`, which all have such a value.
std::vector<std::string> first_of(FirstNonFinite::Pass pass, const std::vector<std::string>& names) {
  double bad = kInfinity, good = 1;
  FirstNonFinite first(pass);
  first.add("embedding.token.weight", Tensor(&good, {1}, DType::f64));
  EXPECT_FALSE(first.is_found());
  std::vector<std::string> found;
  for (const std::string& name : names) {
    first.add(name, Tensor(&bad, {1}, DType::f64));
    found.push_back(first.parameter());
  }
  return found;
}

TEST(FirstNonFinite, IsTheParameterThatAPassUsesFirst) {
  const std::vector<std::string> names = {"head.weight",          "layers.10.mlp.up.weight", "layers.9.norm1.weight",
                                          "layers.9.mlp.up.bias", "embedding.token.weight",  "final_norm.weight"};
  EXPECT_EQ(first_of(FirstNonFinite::Pass::forward, names),
            (std::vector<std::string>{"head.weight", "layers.10.mlp.up.weight", "layers.9.norm1.weight",
                                      "layers.9.norm1.weight", "embedding.token.weight", "embedding.token.weight"}));
  const std::vector<std::string> upwards = {"embedding.token.weight", "layers.9.mlp.up.bias", "layers.10.mlp.up.weight",
                                            "layers.9.norm1.weight", "final_norm.weight"};
  EXPECT_EQ(first_of(FirstNonFinite::Pass::backward, upwards),
            (std::vector<std::string>{"embedding.token.weight", "layers.9.mlp.up.bias", "layers.10.mlp.up.weight",
                                      "layers.10.mlp.up.weight", "final_norm.weight"}));
}

}  // namespace
}  // namespace megalith
