#include "megalith/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

class AdamWTest : public OpTest {
 protected:
  Tensor put_verdict(const StepVerdict& verdict) {
    const Tensor tensor = ex_.tensor({Index{sizeof verdict}}, DType::u8);
    std::memcpy(tensor.raw(), &verdict, sizeof verdict);
    return tensor;
  }
  /// Groups of elements whose numbers are multiples of three do not decay.
  Tensor put_decays(Index n) {
    const Tensor tensor = ex_.tensor({ceil_div(n, kDecayGroup)}, DType::u8);
    for (Index i = 0; i < tensor.numel(); ++i) tensor.data<std::uint8_t>()[i] = i % 3 == 0 ? 0 : 1;
    return tensor;
  }
  Tensor put_all_decay(Index n) {
    const Tensor tensor = ex_.tensor({ceil_div(n, kDecayGroup)}, DType::u8);
    std::memset(tensor.raw(), 1, static_cast<std::size_t>(tensor.bytes()));
    return tensor;
  }
};
MEGALITH_OPS_PRECISIONS(AdamWTest);

TEST_P(AdamWTest, ThreeStepsOfTheWorkedExample) {
  const Tensor w = put({1}, {1}), m = put({1}, {0}), v = put({1}, {0});
  const Values grads{0.1, 0.1, -0.2}, want{0.9989900001, 0.9979800103, 0.998045679825};
  for (std::size_t n = 0; n < 3; ++n) {
    const Tensor verdict =
        put_verdict({.apply = 1, .factor = 1, .learning_rate = 1e-3, .update = static_cast<std::int64_t>(n)});
    adamw(ex_, {.masters = {.whole = w},
                .m = m,
                .v = v,
                .grad = put({1}, {grads[n]}),
                .decays = put_all_decay(1),
                .verdict = verdict,
                .weight_decay = 0.01});
    EXPECT_NEAR(values_of(w)[0], want[n], dtype() == DType::f32 ? 2e-7 : 1e-10);
  }
}

TEST_P(AdamWTest, EqualsLoopsOnAnySize) {
  for (const Index n : {Index{0}, Index{1}, Index{37}, Index{20001}}) {
    const Values w = random_values(n, 1), m = random_values(n, 2), root = random_values(n, 3),
                 grad = random_values(n, 4);
    Values v = root, want_w = w, want_m = m, want_v = root;
    for (std::size_t i = 0; i < w.size(); ++i) {
      v[i] = static_cast<float>(root[i] * root[i] + 0.01);
      const double g = grad[i] * 0.5;
      want_m[i] = 0.8 * m[i] + 0.2 * g;
      want_v[i] = 0.95 * v[i] + 0.05 * g * g;
      const double m_hat = want_m[i] / (1 - std::pow(0.8, 8)), v_hat = want_v[i] / (1 - std::pow(0.95, 8));
      const double decay = i / static_cast<std::size_t>(kDecayGroup) % 3 == 0 ? 0.0 : 0.1;
      want_w[i] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-6) + decay * w[i]);
    }
    const Tensor tw = put({n}, w), tm = put({n}, m), tv = put({n}, v), tg = put({n}, grad);
    const Tensor copy = dtype() == DType::f32 ? ex_.tensor({n}, DType::f16) : Tensor();
    const AdamW args{.masters = {.whole = tw, .copy = copy},
                     .m = tm,
                     .v = tv,
                     .grad = tg,
                     .decays = put_decays(n),
                     .verdict = put_verdict({.apply = 0, .factor = 0.5, .learning_rate = 0.01, .update = 7}),
                     .beta1 = 0.8,
                     .beta2 = 0.95,
                     .eps = 1e-6,
                     .weight_decay = 0.1};
    adamw(ex_, args);
    EXPECT_EQ(values_of(tw), w) << "a refused step must change nothing";
    EXPECT_EQ(values_of(tm), m);
    EXPECT_EQ(values_of(tv), v);
    AdamW apply = args;
    apply.verdict = put_verdict({.apply = 1, .factor = 0.5, .learning_rate = 0.01, .update = 7});
    adamw(ex_, apply);
    expect_near(tw, want_w, "w");
    expect_near(tm, want_m, "m");
    expect_near(tv, want_v, "v");
    if (!copy) continue;
    for (Index i = 0; i < n; ++i) EXPECT_EQ(copy.data<float16>()[i].bits, float16(tw.data<float>()[i]).bits) << i;
  }
}

TEST_P(AdamWTest, SumsOfSquaresAreThoseOfTheBlocksOfEveryRow) {
  for (const Index n : {Index{0}, Index{1}, Index{99}, (Index{1} << 20) + 17}) {
    for (const Index rows : {Index{1}, Index{3}}) {
      const Index blocks = square_blocks(ex_.device(), n);
      const Values x = random_values(rows * n, 1);
      const Tensor sums = ex_.tensor({rows, blocks}, DType::f64);
      sum_of_squares(ex_, put({rows, n}, x), sums);
      const Values got = values_of(sums);
      for (Index i = 0; i < rows * blocks; ++i) {
        const Index begin = i % blocks << 20;
        double want = 0;
        for (Index j = begin; j < std::min(n, begin + (Index{1} << 20)); ++j) {
          const double value = x[static_cast<std::size_t>(i / blocks * n + j)];
          want += value * value;
        }
        EXPECT_NEAR(got[static_cast<std::size_t>(i)], want, 1e-12 * want) << "block " << i << " of " << rows * blocks;
      }
      ex_.release();
    }
  }
}

TEST_P(AdamWTest, AddsUpInOrderToWhatIsThere) {
  const Values numbers = random_values(1000, 1);
  double want = 2;
  for (const double number : numbers) want += number;
  const Tensor total = put({1}, {2}, DType::f64);
  add_up(ex_, put({1000}, numbers, DType::f64), total);
  EXPECT_EQ(values_of(total)[0], want);
}

TEST_P(AdamWTest, SameBitsForAnyTeam) {
  const Index n = (Index{2} << 20) + 5;
  const Tensor x = put({n}, random_values(n, 1)), v = put({n}, Values(static_cast<std::size_t>(n), 0.5));
  const Tensor verdict = put_verdict({.apply = 1, .factor = 1, .learning_rate = 0.01, .update = 3});
  const Tensor decays = put_decays(n);
  expect_same_bits_for_any_team([&] {
    const Tensor sums = ex_.tensor({1, square_blocks(ex_.device(), n)}, DType::f64);
    const Tensor w = empty({n}), m = empty({n}), second = empty({n});
    sum_of_squares(ex_, x.reshaped({1, n}), sums);
    copy(ex_, x, w);
    copy(ex_, x, m);
    copy(ex_, v, second);
    adamw(ex_, {.masters = {.whole = w}, .m = m, .v = second, .grad = x, .decays = decays, .verdict = verdict});
    Values all = values_of(w);
    for (const double sum : values_of(sums)) all.push_back(sum);
    return all;
  });
}

TEST_P(AdamWTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor w = empty({3}), other = empty({4});
  EXPECT_EQ(error_text([&] {
              adamw(ex_, {.masters = {.whole = w},
                          .m = w,
                          .v = other,
                          .grad = w,
                          .decays = put_decays(3),
                          .verdict = put_verdict({})});
            }),
            "[adamw.v] shape = [4]: must be [3]");
  EXPECT_EQ(error_text([&] {
              sum_of_squares(ex_, w.reshaped({1, 3}), ex_.tensor({1, 1}, DType::f32));
            }),
            "[sum_of_squares.sums] dtype = f32: must be f64");
  EXPECT_EQ(error_text([&] { add_up(ex_, ex_.tensor({2}, DType::f64), ex_.tensor({2}, DType::f64)); }),
            "[add_up.total] shape = [2]: must be [1]");
}

}  // namespace
}  // namespace megalith::ops
