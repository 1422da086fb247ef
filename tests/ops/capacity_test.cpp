#include "megalith/ops/capacity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

using Ids = std::vector<std::int32_t>;

struct CapacityCase {
  Index tokens, top_k, experts, run, capacity;
};
const CapacityCase kCapacityCases[] = {{0, 2, 3, 4, 1},  {8, 1, 2, 8, 3},     {8, 1, 2, 4, 2},     {30, 2, 5, 10, 3},
                                       {30, 3, 4, 6, 0}, {24, 2, 4, 12, 100}, {300, 2, 3, 100, 40}};

Ids some_experts(const CapacityCase& c) {
  Ids ids;
  for (Index t = 0; t < c.tokens; ++t) {
    for (Index k = 0; k < c.top_k; ++k) ids.push_back(static_cast<std::int32_t>((t * t / 3 + k) % c.experts));
    if (t % 7 == 5) ids.back() = -1;
  }
  return ids;
}

/// To so many bits after the leading one, halves to even.
double rounded(double value, int bits) {
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);  // 0.5 and more
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, bits + 1)), exponent - bits - 1);
}

/// By sorting the pairs of each expert and run.
Ids kept_of(const CapacityCase& c, const Ids& experts, Values weights, DropBy by, int bits) {
  Ids kept = experts;
  for (double& weight : weights) weight = rounded(weight, bits);
  const auto of_run = static_cast<std::size_t>(c.run * c.top_k);
  for (std::size_t first = 0; first < experts.size(); first += of_run) {
    for (std::int32_t e = 0; e < c.experts; ++e) {
      std::vector<std::size_t> pairs;
      for (std::size_t pair = first; pair < first + of_run; ++pair) {
        if (experts[pair] == e) pairs.push_back(pair);
      }
      if (by == DropBy::probability)
        std::stable_sort(pairs.begin(), pairs.end(), [&](auto a, auto b) { return weights[a] > weights[b]; });
      for (std::size_t i = static_cast<std::size_t>(c.capacity); i < pairs.size(); ++i) kept[pairs[i]] = -1;
    }
  }
  return kept;
}

class CapacityTest : public OpTest {
 protected:
  Ids run(const CapacityCase& c, const Ids& ids, const Values& weights, DropBy by) {
    const Tensor experts = put_ids(ids).reshaped({c.tokens, c.top_k}),
                 kept = ex_.tensor({c.tokens, c.top_k}, DType::i32);
    drop_pairs(ex_, {.experts = experts,
                     .weights = by == DropBy::probability ? put({c.tokens, c.top_k}, weights) : Tensor(),
                     .kept = kept,
                     .num_experts = c.experts,
                     .capacity = c.capacity,
                     .run = c.run,
                     .by = by});
    const auto span = kept.span<std::int32_t>();
    return {span.begin(), span.end()};
  }
};
MEGALITH_OPS_PRECISIONS(CapacityTest);

TEST_P(CapacityTest, KeepsTheFirstOrTheHeaviest) {
  for (const CapacityCase& c : kCapacityCases) {
    const Ids ids = some_experts(c);
    Values weights = random_values(c.tokens * c.top_k, 1);
    for (std::size_t i = 0; i < weights.size(); i += 3) weights[i] = 0.25;  // ties
    for (const DropBy by : {DropBy::position, DropBy::probability}) {
      const Ids kept = run(c, ids, weights, by);
      EXPECT_EQ(kept, kept_of(c, ids, weights, by, dtype() == DType::f64 ? 32 : 12));
      if (c.capacity == 100) {
        EXPECT_EQ(kept, ids);
      }
    }
  }
}

// Three tokens of one expert, which keeps two. By probability the lightest goes, but a difference beyond the bits that
// are compared does not count: then the last one goes.
TEST_P(CapacityTest, DifferencesBeyondTheOrdersBitsDoNotCount) {
  const CapacityCase c{3, 1, 2, 3, 2};
  const int bits = dtype() == DType::f64 ? 32 : 12;
  const double step = std::ldexp(1.0, -bits - 1);  // of numbers in [0.5, 1) with that many bits
  const auto kept = [&](const Values& weights) { return run(c, {0, 0, 0}, weights, DropBy::probability); };
  EXPECT_EQ(kept({0.75, 0.75 + step, 0.75 + step}), (Ids{-1, 0, 0}));
  EXPECT_EQ(kept({0.75, 0.75 + 0.25 * step, 0.75 + 0.49 * step}), (Ids{0, 0, -1}));
  EXPECT_EQ(kept({0.75 - 0.49 * step, 0.75, 0.75 + 0.25 * step}), (Ids{0, 0, -1}));
  EXPECT_EQ(kept({0.75 + 0.49 * step, 0.75 + 0.51 * step, 0.75 + step}), (Ids{-1, 0, 0})) << "a boundary is straddled";
  EXPECT_EQ(kept({0.75, 0.75 + 0.5 * step, 0.75 + 1.5 * step}), (Ids{0, -1, 0})) << "halves go to even";
  EXPECT_EQ(kept({0.5 - 0.26 * step, 0.5 - 0.24 * step, 0.5}), (Ids{-1, 0, 0})) << "steps are half as long below 0.5";
}

// An order of all numbers, so that an expert keeps no more than its capacity whatever the weights are.
TEST_P(CapacityTest, NumbersThatAreNoWeightsHaveAnOrder) {
  const CapacityCase c{5, 1, 2, 5, 2};
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto kept = [&](const Values& weights) { return run(c, {0, 0, 0, 0, 0}, weights, DropBy::probability); };
  EXPECT_EQ(kept({1, nan, infinity, nan, 2}), (Ids{-1, 0, -1, 0, -1}));
  EXPECT_EQ(kept({nan, nan, nan, nan, nan}), (Ids{0, 0, -1, -1, -1}));
  EXPECT_EQ(kept({-1, -0.0, 0, 0.0, -2}), (Ids{-1, 0, 0, -1, -1}));
  EXPECT_EQ(kept({-infinity, -3, -2, -1, -4}), (Ids{-1, -1, 0, 0, -1}));
}

TEST_P(CapacityTest, NamesWhatDoesNotFit) {
  const auto error = [&](const CapacityCase& c) {
    return error_text([&] { run(c, Ids(static_cast<std::size_t>(c.tokens * c.top_k)), {}, DropBy::position); });
  };
  EXPECT_EQ(error({6, 2, 4, 4, 1}), "[drop_pairs] run = 4: must divide the 6 tokens");
  EXPECT_EQ(error({6, 2, 4, 0, 1}), "[drop_pairs] run = 0: must divide the 6 tokens");
  EXPECT_EQ(error({6, 0, 4, 3, 1}), "[drop_pairs.experts] top_k = 0: must be at least 1");
  EXPECT_EQ(error({6, 2, 0, 3, 1}), "[drop_pairs] num_experts, capacity = 0, 1: must be at least 1 and at least 0");
  EXPECT_EQ(error({6, 2, 4, 3, -1}), "[drop_pairs] num_experts, capacity = 4, -1: must be at least 1 and at least 0");
  const Tensor experts = put_ids({0, 1}).reshaped({2, 1}), kept = ex_.tensor({2, 1}, DType::i32);
  EXPECT_EQ(
      error_text([&] {
        drop_pairs(
            ex_,
            {.experts = experts, .weights = empty({2, 2}), .kept = kept, .num_experts = 2, .capacity = 1, .run = 2});
      }),
      "[drop_pairs.weights] shape = [2, 2]: must be [2, 1]");
}

}  // namespace
}  // namespace megalith::ops
