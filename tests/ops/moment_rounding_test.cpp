#include "megalith/ops/moment_rounding.h"

#include <bit>
#include <cmath>
#include <limits>

#include "megalith/base/str.h"
#include "megalith/ops/adamw.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

float value_of_bits(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

TEST(StochasticRounding, HasTheExactNumberAsItsMean) {
  for (const float x : {1.00001f, -3.14159265f, 1e-30f, 0x1.fffffep5f, -1e-42f, 65537.0f}) {
    double sum = 0;
    for (std::uint32_t random = 0; random < 65536; ++random) {
      const float rounded = value_of_bits(stochastically_rounded(x, random));
      sum += static_cast<double>(rounded);
      EXPECT_LE(std::abs(rounded - x), std::max(std::abs(x) * 0x1p-7f, 0x1p-133f));
    }
    EXPECT_EQ(sum / 65536, static_cast<double>(x));
  }
}

TEST(StochasticRounding, LeavesWhatABf16Holds) {
  const float kInf = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.0f, -0.15625f, kInf, -kInf}) {
    for (const std::uint32_t random : {0u, 1u, 65535u})
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value_of_bits(stochastically_rounded(x, random))),
                std::bit_cast<std::uint32_t>(x));
  }
  // A NaN whose payload lies in the bits that are cut off.
  EXPECT_TRUE(std::isnan(value_of_bits(stochastically_rounded(std::bit_cast<float>(0x7f800001u), 65535))));
}

TEST(RoundedParam, NumbersItsElementsInTheGlobalTensor) {
  const TensorSlice slices[] = {TensorSlice::whole("whole", {3, 5}),
                                {"rows", {6, 5}, {2, 0}, {3, 5}},
                                {"columns", {4, 6}, {0, 2}, {4, 3}},
                                {"experts", {4, 3, 2, 5}, {2, 0, 0, 0}, {2, 3, 2, 5}},
                                {"experts and units", {4, 6, 2, 5}, {2, 3, 0, 0}, {2, 3, 2, 5}},
                                {"experts and columns", {4, 3, 6}, {1, 0, 2}, {2, 3, 2}},
                                TensorSlice::whole("vector", {7})};
  for (const TensorSlice& slice : slices) {
    SCOPED_TRACE(slice.name);
    const RoundedParam param = RoundedParam::of(slice, 128, 5);
    EXPECT_EQ(param.begin, 128);
    for (Index i = 0; i < slice.local.numel(); ++i) {
      Index left = i, want = 0, stride = 1;
      for (int d = slice.global.rank(); d-- > 0;) {
        want += (slice.offset[static_cast<std::size_t>(d)] + left % slice.local[d]) * stride;
        left /= slice.local[d];
        stride *= slice.global[d];
      }
      ASSERT_EQ(param.global(i), static_cast<std::uint64_t>(want)) << i;
    }
  }
  EXPECT_NE(RoundedParam::of(slices[0], 0, 5).seed, RoundedParam::of(slices[0], 0, 6).seed);
  EXPECT_NE(RoundedParam::of(slices[0], 0, 5).seed, RoundedParam::of(slices[1], 0, 5).seed);
  EXPECT_THROW(RoundedParam::of({"two cuts", {2, 4, 4}, {0, 0, 0}, {2, 2, 2}}, 0, 5), InternalError);
}

class RoundedMoments : public OpTest {
 protected:
  template <class T>
  Tensor put_bytes(const std::vector<T>& values, const Shape& shape, DType type) {
    const Tensor tensor = ex_.tensor(shape, type);
    std::memcpy(tensor.raw(), values.data(), static_cast<std::size_t>(tensor.bytes()));
    return tensor;
  }
  Tensor put_table(const std::vector<RoundedParam>& params) {
    return put_bytes(params, {static_cast<Index>(params.size() * sizeof(RoundedParam))}, DType::u8);
  }
};
MEGALITH_OPS_PRECISIONS(RoundedMoments);

/// Two parameters: columns 3..5 of a matrix [70, 8], then a vector of 100.
struct TwoParams {
  static constexpr Index kFirst = 256, kSecond = kFirst + 256, kCount = 384;  // in flat buffers; elements of the op
  const std::vector<RoundedParam> table{RoundedParam::of({"a", {70, 8}, {0, 3}, {70, 3}}, kFirst, 9),
                                        RoundedParam::of(TensorSlice::whole("b", {100}), kSecond, 9)};
  const std::vector<std::int32_t> of_groups{0, 0, 0, 0, 1, 1};
  /// The words of element i of the op.
  std::uint32_t word(Index i, std::int64_t update) const {
    const RoundedParam& param = table[i < 256 ? 0 : 1];
    return RandomSite{.seed = param.seed, .step = static_cast<std::uint32_t>(update)}.word(
        param.global(i + kFirst - param.begin));
  }
};

TEST_P(RoundedMoments, AreThoseOfLoops) {
  const TwoParams two;
  constexpr Index n = TwoParams::kCount;
  const Values w = random_values(n, 1), m = random_values(n, 2), v = random_values(n, 3), grad = random_values(n, 4);
  const Tensor tw = put({n}, w), tm = put({n}, m, DType::bf16), tv = put({n}, v, DType::bf16);
  for (Index i = 0; i < n; ++i) tv.data<bfloat16>()[i].bits &= 0x7fffu;
  const Values old_m = values_of(tm), old_v = values_of(tv);
  AdamW args{.masters = {.whole = tw},
             .m = tm,
             .v = tv,
             .rounding = {.params = put_table(two.table),
                          .param_of = put_bytes(two.of_groups, {6}, DType::i32),
                          .first = TwoParams::kFirst},
             .grad = put({n}, grad),
             .decays = put_bytes(std::vector<std::uint8_t>(6, 1), {6}, DType::u8),
             .verdict = put_bytes(std::vector<StepVerdict>{{.apply = 0}}, {Index{sizeof(StepVerdict)}}, DType::u8),
             .beta1 = 0.8,
             .beta2 = 0.95,
             .eps = 1e-6,
             .weight_decay = 0.1};
  adamw(ex_, args);
  EXPECT_EQ(values_of(tm), old_m) << "a refused step must change nothing";
  EXPECT_EQ(values_of(tv), old_v);
  EXPECT_EQ(values_of(tw), w);
  const StepVerdict verdict{.apply = 1, .factor = 0.5, .learning_rate = 0.01, .update = 7};
  args.verdict = put_bytes(std::vector{verdict}, {Index{sizeof(StepVerdict)}}, DType::u8);
  adamw(ex_, args);
  Values want_w = w;
  Index differing = 0;
  for (Index i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double g = grad[at] * 0.5, new_m = 0.8 * old_m[at] + 0.2 * g, new_v = 0.95 * old_v[at] + 0.05 * g * g;
    const double m_hat = new_m / (1 - std::pow(0.8, 8)), v_hat = new_v / (1 - std::pow(0.95, 8));
    want_w[at] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-6) + 0.1 * w[at]);
    const std::uint32_t word = two.word(i, 7);
    differing +=
        tm.data<bfloat16>()[i].bits != stochastically_rounded(static_cast<float>(new_m), first_moment_bits(word));
    differing +=
        tv.data<bfloat16>()[i].bits != stochastically_rounded(static_cast<float>(new_v), second_moment_bits(word));
  }
  expect_near(tw, want_w, "w");
  EXPECT_LE(differing, dtype() == DType::f32 ? 2 : 0) << "f32 sums may round to the other side of a border";
}

TEST_P(RoundedMoments, AShardHasTheBitsOfTheWhole) {
  const TwoParams two;
  constexpr Index n = TwoParams::kCount;
  const Tensor grad = put({n}, random_values(n, 1)), table = put_table(two.table),
               of_groups = put_bytes(two.of_groups, {6}, DType::i32),
               decays = put_bytes(std::vector<std::uint8_t>(6, 0), {6}, DType::u8);
  const auto updated = [&](Index shards) {
    const Tensor w = put({n}, Values(n, 0.5)), m = put({n}, Values(n, 0.25), DType::bf16),
                 v = put({n}, Values(n, 0.125), DType::bf16);
    for (std::int64_t update = 0; update < 3; ++update) {
      const StepVerdict verdict{.apply = 1, .factor = 1, .learning_rate = 0.01, .update = update};
      const Tensor put_verdict = put_bytes(std::vector{verdict}, {Index{sizeof(StepVerdict)}}, DType::u8);
      for (Index begin = 0, count = n / shards; begin < n; begin += count) {
        adamw(ex_, {.masters = {.whole = w.rows(begin, count)},
                    .m = m.rows(begin, count),
                    .v = v.rows(begin, count),
                    .rounding = {.params = table,
                                 .param_of = of_groups.rows(begin / kDecayGroup, count / kDecayGroup),
                                 .first = TwoParams::kFirst + begin},
                    .grad = grad.rows(begin, count),
                    .decays = decays.rows(begin / kDecayGroup, count / kDecayGroup),
                    .verdict = put_verdict});
      }
    }
    Values all = values_of(w);
    for (const Tensor& moment : {m, v})
      for (const double value : values_of(moment)) all.push_back(value);
    return all;
  };
  EXPECT_EQ(updated(3), updated(1));
}

TEST_P(RoundedMoments, HaveTheSameBitsForAnyTeam) {
  constexpr Index n = (Index{1} << 18) + 128;
  const std::vector<RoundedParam> params{RoundedParam::of({"a", {n / 64, 128}, {0, 32}, {n / 64, 64}}, 0, 3)};
  const Tensor grad = put({n}, random_values(n, 1)), table = put_table(params),
               of_groups = put_bytes(std::vector<std::int32_t>(n / 64, 0), {n / 64}, DType::i32),
               decays = put_bytes(std::vector<std::uint8_t>(n / 64, 1), {n / 64}, DType::u8);
  const StepVerdict verdict{.apply = 1, .factor = 1, .learning_rate = 0.01, .update = 3};
  const Tensor put_verdict = put_bytes(std::vector{verdict}, {Index{sizeof(StepVerdict)}}, DType::u8);
  expect_same_bits_for_any_team([&] {
    const Tensor w = put({n}, Values(n, 0.5)), m = put({n}, Values(n, 0.25), DType::bf16),
                 v = put({n}, Values(n, 0.125), DType::bf16);
    adamw(ex_, {.masters = {.whole = w},
                .m = m,
                .v = v,
                .rounding = {.params = table, .param_of = of_groups},
                .grad = grad,
                .decays = decays,
                .verdict = put_verdict});
    Values all = values_of(m);
    for (const double value : values_of(v)) all.push_back(value);
    return all;
  });
}

TEST_P(RoundedMoments, NameTheArgumentThatDoesNotFit) {
  const Tensor w = put({64}, Values(64, 1)), m = put({64}, Values(64, 1), DType::bf16),
               decays = put_bytes(std::vector<std::uint8_t>(1, 1), {1}, DType::u8), table = put_table({RoundedParam{}}),
               of_groups = put_bytes(std::vector<std::int32_t>{0}, {1}, DType::i32),
               verdict = put_bytes(std::vector<StepVerdict>{{}}, {Index{sizeof(StepVerdict)}}, DType::u8);
  EXPECT_EQ(error_text([&] {
              adamw(ex_, {.masters = {.whole = w},
                          .m = m,
                          .v = w,
                          .rounding = {table, of_groups},
                          .grad = w,
                          .decays = decays,
                          .verdict = verdict});
            }),
            str("[adamw.v] dtype = ", name_of(dtype()), ": must be bf16"));
  EXPECT_EQ(error_text([&] {
              adamw(ex_, {.masters = {.whole = w},
                          .m = m,
                          .v = m,
                          .rounding = {table, Tensor(nullptr, {2}, DType::i32)},
                          .grad = w,
                          .decays = decays,
                          .verdict = verdict});
            }),
            "[adamw.rounding.param_of] shape = [2]: must be [1]");
}

}  // namespace
}  // namespace megalith::ops
