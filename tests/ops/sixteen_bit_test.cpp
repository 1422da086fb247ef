#include <array>
#include <bit>
#include <cmath>

#include "megalith/base/philox.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/matmul.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

/// On every instruction set: what is stored in 16 bits is widened and rounded as the scalar conversions do.
template <class T>
class SixteenBit : public ::testing::Test {
 protected:
  static std::vector<const cpu::Kernels<T>*> all_kernels() {
    std::vector<const cpu::Kernels<T>*> all;
    for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
      if (cpu::is_available(isa)) all.push_back(&cpu::kernels<T>(isa));
    }
    return all;
  }
};
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return std::string(name_of(dtype_of<T>));
  }
};
using StoredTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(SixteenBit, StoredTypes, TypeNames);

TYPED_TEST(SixteenBit, EveryNumberWidensAndComesBack) {
  const auto count = std::size_t{1} << 16;
  std::vector<TypeParam> numbers(count), back(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(count);
  for (const cpu::Kernels<TypeParam>* kernels : this->all_kernels()) {
    kernels->elementwise.widen(numbers.data(), wide.data(), static_cast<Index>(count));
    kernels->elementwise.round(wide.data(), back.data(), static_cast<Index>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const auto want = static_cast<float>(numbers[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(want)) << std::hex << i;
      if (std::isnan(want)) continue;
      ASSERT_EQ(back[i].bits, numbers[i].bits) << std::hex << i;
    }
  }
}

TYPED_TEST(SixteenBit, RoundsToNearestEven) {
  // Words of every exponent, halfway cases of both types and their neighbours, in lengths that end in part of a vector.
  std::vector<float> wide;
  const RandomSite site{.seed = 3};
  for (std::uint64_t i = 0; i < 200'003; ++i) {
    const std::uint32_t word = site.word(i), shift = i % 3 == 0 ? 0 : i % 3 == 1 ? 12 : 15;
    for (const std::uint32_t near : {word, word >> shift << shift, (word >> shift << shift) + 1})
      wide.push_back(std::bit_cast<float>(near));
  }
  for (const float edge : {0.0f, -0.0f, 65504.0f, 65519.99f, 65520.0f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f})
    wide.insert(wide.end(), {edge, -edge});
  std::vector<TypeParam> rounded(wide.size());
  for (const cpu::Kernels<TypeParam>* kernels : this->all_kernels()) {
    kernels->elementwise.round(wide.data(), rounded.data(), static_cast<Index>(wide.size()));
    for (std::size_t i = 0; i < wide.size(); ++i)
      ASSERT_EQ(rounded[i].bits, static_cast<TypeParam>(wide[i]).bits) << wide[i];
  }
}

class SixteenBitMatmul : public OpTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, SixteenBitMatmul,
                         ::testing::Values(Precision{DType::bf16, 0x1p-8 + 1e-5},
                                           Precision{DType::f16, 0x1p-11 + 1e-5}),
                         [](const auto& row) { return std::string(name_of(row.param.dtype)); });

/// Sums of small whole numbers are exact in f32 in any order: c must be their rounding, whatever the shape of the
/// blocks and of the pieces that operands are widened in.
TEST_P(SixteenBitMatmul, SumsInF32AndRoundsOnce) {
  for (const auto& [m, n, k] : {std::array<Index, 3>{1, 300, 77},
                                {300, 1, 77},
                                {13, 17, 300},
                                {65, 97, 200},
                                {130, 140, 390},
                                {300, 401, 129},
                                {5, 3, 0}}) {
    for (const Transpose t : {Transpose::no, Transpose::yes}) {
      SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << (t == Transpose::yes));
      const auto whole = [](Index count, std::uint32_t seed) {
        Values values = random_values(count, seed, 3);
        for (double& value : values) value = std::round(value);
        return values;
      };
      const Tensor a = put(t == Transpose::yes ? Shape{k, m} : Shape{m, k}, whole(m * k, 1));
      const Tensor b = put(t == Transpose::yes ? Shape{n, k} : Shape{k, n}, whole(n * k, 2));
      const Values bias = whole(n, 3), before = whole(m * n, 4);
      const Values x = values_of(a), y = values_of(b);
      Values product(static_cast<std::size_t>(m * n), 0.0);
      for (Index i = 0; i < m; ++i) {
        for (Index l = 0; l < k; ++l) {
          for (Index j = 0; j < n; ++j) {
            product[static_cast<std::size_t>(i * n + j)] +=
                x[static_cast<std::size_t>(t == Transpose::yes ? l * m + i : i * k + l)] *
                y[static_cast<std::size_t>(t == Transpose::yes ? j * k + l : l * n + j)];
          }
        }
      }
      const auto with = [&](const Values& added, DType type) {  // added to the sums before they are rounded
        Values sums = product;
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += added[i % added.size()];
        return values_of(put({m, n}, sums, type));
      };
      const Values zero{0.0};
      const Tensor c = empty({m, n}), wide = ex_.tensor({m, n}, DType::f32);
      matmul(ex_, {.a = a, .b = b, .c = c, .transpose_a = t, .transpose_b = t});
      EXPECT_EQ(values_of(c), with(zero, dtype()));
      matmul(ex_, {.a = a, .b = b, .c = wide, .transpose_a = t, .transpose_b = t});
      EXPECT_EQ(values_of(wide), with(zero, DType::f32));
      for (const DType type : {dtype(), DType::f32}) {
        const Tensor biased = ex_.tensor({m, n}, type), sum = put({m, n}, before, type);
        matmul(ex_, {.a = a, .b = b, .bias = put({n}, bias), .c = biased, .transpose_a = t, .transpose_b = t});
        EXPECT_EQ(values_of(biased), with(bias, type));
        matmul(ex_, {.a = a, .b = b, .c = sum, .transpose_a = t, .transpose_b = t, .write = Write::accumulate});
        EXPECT_EQ(values_of(sum), with(before, type));
      }
      ex_.release();
    }
  }
}

TEST_P(SixteenBitMatmul, SameBitsForAnyTeam) {
  for (const auto& [m, n, k] : {std::array<Index, 3>{200, 500, 300}, {96, 96, 2000}, {1, 4000, 100}, {4000, 1, 100}}) {
    expect_same_bits_for_any_team([&, m = m, n = n, k = k] {
      const Tensor a = put({m, k}, random_values(m * k, 1)), b = put({k, n}, random_values(k * n, 2));
      const Tensor c = ex_.tensor({m, n}, DType::f32);
      matmul(ex_, {.a = a, .b = b, .c = c});
      return values_of(c);
    });
  }
}

}  // namespace
}  // namespace megalith::ops
