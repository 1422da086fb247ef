#include "megalith/ops/quantise.h"

#include "megalith/ops/init.h"

#include "tests/ops/fp8_reference.h"
#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr float kLeastNormal = 0x1p-126f;

TEST(E4m3, HasItsNumbers) {
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    const float value = e4m3_value(static_cast<std::uint8_t>(code));
    const double want = e4m3_number(code);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e4m3_code(value), kE4m3Nan);
      continue;
    }
    EXPECT_EQ(value, want);
    EXPECT_EQ(std::signbit(value), code >= 128);
    EXPECT_EQ(e4m3_code(value), code);
  }
}

TEST(E4m3, RoundsToTheNearest) {
  // Every f32 number whose lower 16 bits are 0: all codes, all halfway cases, what is between them, and beyond.
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    const auto value = std::bit_cast<float>(upper << 16);
    ASSERT_EQ(e4m3_code(value), nearest_e4m3(value)) << value;
  }
  for (int code = 0; code < 0x7e; ++code) {  // next to the halfway cases
    const auto middle = static_cast<float>((e4m3_number(code) + e4m3_number(code + 1)) / 2);
    EXPECT_EQ(e4m3_code(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(e4m3_code(std::nextafter(middle, 1e3f)), code + 1);
  }
}

TEST(E4m3, KeepsWhatIsNotFinite) {
  constexpr float kBeyond = std::numeric_limits<float>::infinity();
  static_assert(e4m3_code(kBeyond) == kE4m3Nan && e4m3_code(-kBeyond) == kE4m3Nan);
  EXPECT_EQ(e4m3_code(-std::numeric_limits<float>::quiet_NaN()), kE4m3Nan);
  EXPECT_EQ(e4m3_code(1e30f), 0x7e);
  EXPECT_EQ(e4m3_code(-465.0f), 0xfe);
  EXPECT_EQ(finite_magnitude(kBeyond), 0U);
  EXPECT_EQ(finite_magnitude(-2.0f), std::bit_cast<std::uint32_t>(2.0f));
}

TEST(E4m3, ScalesOfBlocks) {
  const auto scale = [](float amax, ScaleForm form) { return block_scale(std::bit_cast<std::uint32_t>(amax), form); };
  EXPECT_EQ(scale(448, ScaleForm::f32), 1);
  EXPECT_EQ(scale(3, ScaleForm::f32), 3.0f / 448);
  EXPECT_EQ(scale(448, ScaleForm::power_of_two), 1);
  EXPECT_EQ(scale(449, ScaleForm::power_of_two), 2);
  EXPECT_EQ(scale(3, ScaleForm::power_of_two), 0x1p-7f);
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(scale(largest, ScaleForm::power_of_two), 0x1p120f);
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::power_of_two}) {
    EXPECT_EQ(scale(0, form), kLeastNormal);
    EXPECT_EQ(scale(1e-45f, form), kLeastNormal);
    for (const float amax : {1e-37f, 0.7f, 1e5f, largest}) {
      EXPECT_EQ(scale(amax, form), reference_scale(amax, form)) << amax;
      EXPECT_EQ(e4m3_code(amax * (1 / scale(amax, form))) & 0x7f, nearest_e4m3(amax / scale(amax, form)))
          << "the largest of a block does not overflow: " << amax;
    }
  }
}

struct QuantiseSize {
  Index rows, columns;
};
// Nothing, less than a block, whole blocks, and odd rests of both.
constexpr QuantiseSize kQuantiseSizes[] = {{0, 5},     {5, 0},     {1, 1},    {1, 130}, {3, 7},
                                           {128, 128}, {129, 257}, {40, 390}, {261, 64}};

Tensor on_heap(Exec& ex, std::vector<float> numbers, const Shape& shape, DType dtype) {
  const Tensor wide(numbers.data(), shape, DType::f32), narrow = ex.tensor(shape, dtype);
  cast(ex, wide, narrow);
  return narrow;
}
/// As the tensor holds them.
std::vector<float> held(Exec& ex, const Tensor& x) {
  std::vector<float> numbers(static_cast<std::size_t>(x.numel()));
  cast(ex, x, Tensor(numbers.data(), x.shape(), DType::f32));
  return numbers;
}

TEST(Quantise, EqualsTheDefinition) {
  Exec ex;
  ex.poison_new_tensors();
  for (const auto [rows, columns] : kQuantiseSizes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Tensor x = on_heap(ex, fp8_test_numbers(rows * columns, 3), {rows, columns}, dtype);
      const std::vector<float> numbers = held(ex, x), turned_numbers = transposed(numbers, rows, columns);
      for (const ScaleBlocks blocks : {ScaleBlocks::vectors, ScaleBlocks::squares}) {
        for (const ScaleForm form : {ScaleForm::f32, ScaleForm::power_of_two}) {
          SCOPED_TRACE(testing::Message()
                       << rows << " x " << columns << " " << name_of(dtype) << ", squares "
                       << (blocks == ScaleBlocks::squares) << ", power of two " << (form == ScaleForm::power_of_two));
          const Operand straight = make_operand(ex, rows, columns, blocks),
                        turned = make_operand(ex, columns, rows, blocks);
          quantise(ex, {.x = x, .straight = straight, .turned = turned, .form = form});
          EXPECT_EQ(difference(read_operand(ex, straight), reference_fp8(numbers, rows, columns, blocks, form)), "");
          EXPECT_EQ(difference(read_operand(ex, turned), reference_fp8(turned_numbers, columns, rows, blocks, form)),
                    "");
        }
      }
      ex.release();
    }
  }
}

TEST(Quantise, OneFormAloneIsTheSame) {
  Exec ex;
  const Index rows = 130, columns = 200;
  const Tensor x = on_heap(ex, fp8_test_numbers(rows * columns, 5), {rows, columns}, DType::bf16);
  for (const ScaleBlocks blocks : {ScaleBlocks::vectors, ScaleBlocks::squares}) {
    const auto made = [&] {
      return std::array{make_operand(ex, rows, columns, blocks), make_operand(ex, columns, rows, blocks)};
    };
    const auto both = made(), alone = made();
    quantise(ex, {.x = x, .straight = both[0], .turned = both[1]});
    quantise(ex, {.x = x, .straight = alone[0]});
    quantise(ex, {.x = x, .turned = alone[1]});
    for (const std::size_t i : {0U, 1U})
      EXPECT_EQ(difference(read_operand(ex, alone[i]), read_operand(ex, both[i])), "");
  }
}

/// A rank that holds the columns or the rows of some blocks has the codes of the whole.
TEST(Quantise, SplitsAtBlocks) {
  Exec ex;
  const Index rows = 256, columns = 256, half = 128;
  const std::vector<float> numbers = fp8_test_numbers(rows * columns, 7);
  for (const ScaleBlocks blocks : {ScaleBlocks::vectors, ScaleBlocks::squares}) {
    const Fp8Matrix whole = reference_fp8(numbers, rows, columns, blocks, ScaleForm::f32);
    for (const Index first : {Index{0}, half}) {
      std::vector<float> part;
      std::vector<std::uint8_t> want;
      for (Index r = 128; r < rows; ++r) {
        for (Index c = first; c < first + half; ++c) {
          part.push_back(numbers[static_cast<std::size_t>(r * columns + c)]);
          want.push_back(whole.codes[static_cast<std::size_t>(r * columns + c)]);
        }
      }
      const Operand share = make_operand(ex, rows - 128, half, blocks);
      quantise(ex, {.x = on_heap(ex, part, {rows - 128, half}, DType::f32), .straight = share});
      EXPECT_EQ(read_operand(ex, share).codes, want);
    }
  }
}

/// Halves of the spacing at the largest of a block for normal codes, and of the smallest code for the others.
TEST(Quantise, ErrorsAreWithinTheirBound) {
  Exec ex;
  const Index rows = 64, columns = 512;
  const Values values = random_values(rows * columns, 4);
  std::vector<float> numbers(values.begin(), values.end());
  const Operand x = make_operand(ex, rows, columns, ScaleBlocks::vectors);
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::power_of_two}) {
    quantise(ex, {.x = on_heap(ex, numbers, {rows, columns}, DType::f32), .straight = x, .form = form});
    const Fp8Matrix codes = read_operand(ex, x);
    const std::vector<double> got = numbers_of(codes, rows, columns, ScaleBlocks::vectors);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double scale = codes.scales[i % 512 / 128 * 64 + i / 512], size = std::abs(values[i]);
      ASSERT_LE(std::abs(got[i] - values[i]), std::max(size * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6)) << values[i];
    }
  }
}

TEST(Quantise, AnyNumberOfThreads) {
  const std::vector<float> numbers = fp8_test_numbers(300 * 300, 9);
  expect_same_bits_for_any_team([&] {
    Exec ex;
    const Operand x = make_operand(ex, 300, 300, ScaleBlocks::vectors), y = make_operand(ex, 300, 300, x.blocks);
    quantise(ex, {.x = on_heap(ex, numbers, {300, 300}, DType::bf16), .straight = x, .turned = y});
    Values all;
    for (const Operand& operand : {x, y}) {
      const Fp8Matrix matrix = read_operand(ex, operand);
      all.insert(all.end(), matrix.codes.begin(), matrix.codes.end());
      all.insert(all.end(), matrix.scales.begin(), matrix.scales.end());
    }
    return all;
  });
}

TEST(Quantise, RefusesWrongTensors) {
  Exec ex;
  const Tensor x = ex.tensor({4, 200}, DType::bf16);
  Operand operand = make_operand(ex, 4, 200, ScaleBlocks::vectors);
  EXPECT_EQ(error_text([&] { quantise(ex, {.x = x}); }), "[quantise] straight, turned: one of them must be defined");
  EXPECT_EQ(error_text([&] {
              quantise(ex, {.x = ex.tensor({4, 200}, DType::f64), .straight = operand});
            }),
            "[quantise] x: dtype = f64: must be f32, bf16 or f16");
  EXPECT_EQ(error_text([&] { quantise(ex, {.x = x, .turned = operand}); }),
            "[quantise.turned.values] shape = [4, 200]: must be [200, 4]");
  operand.scales = ex.tensor({4, 2}, DType::f32);
  EXPECT_EQ(error_text([&] { quantise(ex, {.x = x, .straight = operand}); }),
            "[quantise.straight.scales] shape = [4, 2]: must be [2, 4]");
  const Operand straight = make_operand(ex, 4, 200, ScaleBlocks::vectors),
                turned = make_operand(ex, 200, 4, ScaleBlocks::squares);
  EXPECT_EQ(error_text([&] { quantise(ex, {.x = x, .straight = straight, .turned = turned}); }),
            "[quantise] turned.blocks: must be those of straight");
  EXPECT_EQ(
      error_text([&] { quantise(ex, {.x = x, .straight = straight, .column_sums = ex.tensor({4}, DType::f32)}); }),
      "[quantise.column_sums] shape = [4]: must be [200]");
  EXPECT_EQ(
      error_text([&] { quantise(ex, {.x = x, .straight = straight, .column_sums = ex.tensor({200}, DType::bf16)}); }),
      "[quantise.column_sums] dtype = bf16: must be f32");
}

}  // namespace
}  // namespace megalith::ops
