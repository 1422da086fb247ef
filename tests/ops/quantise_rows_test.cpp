#include "megalith/ops/quantise_rows.h"

#include "tests/ops/fp8_reference.h"
#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

TEST(QuantiseRows, RefusesWrongTensors) {
  Exec ex;
  const Tensor x = ex.tensor({3, 200}, DType::bf16), pair_of = ex.tensor({6}, DType::i32);
  for (std::int32_t& pair : pair_of.span<std::int32_t>()) pair = kZeroRow;
  const Operand straight = make_operand(ex, 6, 200, ScaleBlocks::vectors),
                turned = make_operand(ex, 200, 6, ScaleBlocks::vectors);
  EXPECT_NO_THROW(quantise_rows(ex, {.x = x, .pair_of = pair_of, .straight = straight, .turned = turned, .top_k = 2}));
  const auto text = [&](const QuantiseRows& args) { return error_text([&] { quantise_rows(ex, args); }); };
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .rows = ex.tensor({6, 200}, DType::bf16)}),
            "[quantise_rows] straight, turned: one of them must be defined");
  EXPECT_EQ(text({.x = ex.tensor({3, 200}, DType::f64), .pair_of = pair_of, .straight = straight}),
            "[quantise_rows] x: dtype = f64: must be f32, bf16 or f16");
  EXPECT_EQ(text({.x = x, .pair_of = ex.tensor({6}, DType::i64), .straight = straight}),
            "[quantise_rows.pair_of] dtype = i64: must be i32");
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .straight = straight, .top_k = 0}),
            "[quantise_rows] top_k = 0: must be in 1 .. 1024");
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .rows = x, .straight = straight}),
            "[quantise_rows.rows] shape = [3, 200]: must be [6, 200]");
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .straight = turned}),
            "[quantise_rows.straight.values] shape = [200, 6]: must be [6, 200]");
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .turned = straight}),
            "[quantise_rows.turned.values] shape = [6, 200]: must be [200, 6]");
  EXPECT_EQ(text({.x = x, .pair_of = pair_of, .straight = make_operand(ex, 6, 200, ScaleBlocks::squares)}),
            "[quantise_rows] straight.blocks, turned.blocks = squares: must be vectors");
}

TEST(QuantiseRows, AnyNumberOfThreads) {
  std::vector<float> numbers = fp8_test_numbers(100 * 300, 9);
  expect_same_bits_for_any_team([&] {
    Exec ex;
    const Tensor x(numbers.data(), {100, 300}, DType::f32), pair_of = ex.tensor({257}, DType::i32);
    for (Index r = 0; r < 257; ++r)
      pair_of.data<std::int32_t>()[r] = r % 5 == 2 ? kZeroRow : static_cast<std::int32_t>(r * r % 300);
    const Operand straight = make_operand(ex, 257, 300, ScaleBlocks::vectors),
                  turned = make_operand(ex, 300, 257, ScaleBlocks::vectors);
    quantise_rows(ex, {.x = x, .pair_of = pair_of, .straight = straight, .turned = turned, .top_k = 3});
    Values all;
    for (const Operand& operand : {straight, turned}) {
      const Fp8Matrix matrix = read_operand(ex, operand);
      all.insert(all.end(), matrix.codes.begin(), matrix.codes.end());
      all.insert(all.end(), matrix.scales.begin(), matrix.scales.end());
    }
    return all;
  });
}

}  // namespace
}  // namespace megalith::ops
