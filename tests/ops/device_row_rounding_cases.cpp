// Rows of experts that are rounded to E4M3 while they are gathered.
#include <array>
#include <vector>

#include "megalith/ops/quantise_rows.h"

#include "tests/ops/device_cases.h"
#include "tests/ops/fp8_reference.h"

namespace megalith::ops {
namespace {

/// What rows of experts are gathered to, on a device. Bytes that are not written stay 0x5a.
struct GatheredForms {
  GatheredForms(Exec& ex, Index rows, Index hidden, DType dtype)
      : numbers(ex.tensor({rows, hidden}, dtype)),
        straight(make_operand(ex, rows, hidden, ScaleBlocks::vectors)),
        turned(make_operand(ex, hidden, rows, ScaleBlocks::vectors)) {
    for (const Tensor& tensor : all()) {
      const std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()), std::byte{0x5a});
      ex.copy(tensor.raw(), bytes.data(), tensor.bytes());
      ex.synchronize();
    }
  }
  std::array<Tensor, 5> all() const {
    return {numbers, straight.values, straight.scales, turned.values, turned.scales};
  }
  static std::vector<std::byte> bytes_of(Exec& ex, const Tensor& tensor) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
    ex.copy(bytes.data(), tensor.raw(), tensor.bytes());
    ex.synchronize();
    return bytes;
  }
  /// The tensors from `first` to `last` of all().
  void expect_equal(Exec& ex, const GatheredForms& want, std::size_t first, std::size_t last, const char* what) const {
    constexpr const char* kNames[] = {"rows", "straight", "scales", "turned", "its scales"};
    for (std::size_t i = first; i <= last; ++i)
      EXPECT_TRUE(bytes_of(ex, all()[i]) == bytes_of(ex, want.all()[i])) << what << ": " << kNames[i];
  }

  Tensor numbers;
  Operand straight, turned;
};

struct RowsToRound {
  Index tokens, top_k, experts, hidden;
  Index rows_per_expert = 0;
};
// No tokens, rows of less than a block, odd widths, an expert with more blocks than one, empty experts, capacities
// above and below what comes, and widths of whole vectors.
constexpr RowsToRound kRowsToRound[] = {{0, 2, 3, 8},          {1, 1, 1, 1},      {70, 3, 8, 130},
                                        {300, 2, 4, 264, 130}, {500, 8, 16, 256}, {90, 2, 4, 1032, 11},
                                        {40, 4, 4, 384, 40},   {129, 1, 200, 136}};

/// Rows that are rounded while they are gathered have the bits of rows that are gathered first. Tokens without a row,
/// which are NaN here, change nothing. What no group has stays as it is.
TEST_P(DeviceOps, QuantisesRows) {
  Exec& ex = t().tested();
  Exec host;
  for (const RowsToRound& c : kRowsToRound) {
    const Index pairs = c.tokens * c.top_k, count = rows_to_build(pairs, c.experts, c.rows_per_expert, kScaleBlock);
    std::vector<std::int32_t> chosen;
    std::vector<float> numbers = fp8_test_numbers(c.tokens * c.hidden, 5);
    for (Index i = 0; i < pairs; ++i) {
      const bool is_dropped = i % 7 == 3 || i / c.top_k % 6 == 4;
      chosen.push_back(is_dropped ? -1 : static_cast<std::int32_t>(i * i % 97 % c.experts));
    }
    for (Index token = 4; token < c.tokens; token += 6) std::fill_n(numbers.begin() + token * c.hidden, c.hidden, NAN);
    const Tensor narrow = host.tensor({c.tokens, c.hidden}, t().dtype());
    cast(host, Tensor(numbers.data(), narrow.shape(), DType::f32), narrow);
    const auto ids = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
    const Tensor experts = ids({c.tokens, c.top_k}), row_of = ids({c.tokens, c.top_k}), pair_of = ids({count});
    ex.copy(experts.raw(), chosen.data(), experts.bytes());
    const GroupRows groups{.begin = ids({c.experts}), .rows = ids({c.experts}), .alignment = kScaleBlock};
    build_rows(ex, {.experts = experts,
                    .groups = groups,
                    .row_of = row_of,
                    .pair_of = pair_of,
                    .rows_per_expert = c.rows_per_expert});
    for (const Index first : {0, 1}) {  // at an address of 16 bytes, and not
      SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.top_k << " of " << c.experts << ", " << c.hidden
                                        << ", from element " << first);
      const Tensor x =
          ex.tensor({narrow.numel() + 1}, t().dtype()).rows(first, narrow.numel()).reshaped(narrow.shape());
      ex.copy(x.raw(), narrow.raw(), x.bytes());
      const auto forms = [&] { return GatheredForms(ex, count, c.hidden, t().dtype()); };
      const GatheredForms want = forms(), got = forms(), alone = forms(), kept = forms();
      permute_rows(ex, {.x = x, .pair_of = pair_of, .row_of = row_of, .rows = want.numbers, .top_k = c.top_k});
      quantise(ex, {.x = want.numbers, .straight = want.straight, .turned = want.turned, .groups = groups});
      const QuantiseRows args{.x = x, .pair_of = pair_of, .top_k = c.top_k};
      const auto with = [&](const Tensor& rows, const Operand& straight, const Operand& turned) {
        QuantiseRows all = args;
        all.rows = rows;
        all.straight = straight;
        all.turned = turned;
        quantise_rows(ex, all);
      };
      with(got.numbers, got.straight, got.turned);
      with({}, alone.straight, {});
      with({}, {}, alone.turned);
      with(kept.numbers, kept.straight, {});
      got.expect_equal(ex, want, 0, 4, "all forms");
      alone.expect_equal(ex, want, 1, 4, "one at a time");
      kept.expect_equal(ex, want, 0, 2, "without turned");
    }
    t().release();
    host.release();
  }
}

/// A map that is not of build_rows(): 300 rows, of which 128 belong to nobody.
TEST_P(DeviceOps, QuantisesRowsOfAnyMap) {
  Exec& ex = t().tested();
  const Index tokens = 50, hidden = 200, count = 300;
  std::vector<std::int32_t> pairs(static_cast<std::size_t>(count)), groups_of{0, 256, 128, 44};
  for (std::size_t row = 0; row < pairs.size(); ++row)
    pairs[row] = row / 128 == 1 ? (row % 2 == 0 ? kUnusedRow : 3) : static_cast<std::int32_t>(row * 7 % 50);
  pairs[5] = kUnusedRow;
  pairs[6] = kZeroRow;
  const Tensor pair_of = ex.tensor({count}, DType::i32), table = ex.tensor({2, 2}, DType::i32),
               x = t().in({tokens, hidden}, 1).tested;
  ex.copy(pair_of.raw(), pairs.data(), pair_of.bytes());
  ex.copy(table.raw(), groups_of.data(), table.bytes());
  const GroupRows groups{
      .begin = table.rows(0, 1).reshaped({2}), .rows = table.rows(1, 1).reshaped({2}), .alignment = kScaleBlock};
  const GatheredForms want(ex, count, hidden, t().dtype()), got(ex, count, hidden, t().dtype());
  std::vector<std::int32_t> as_zeros = pairs;
  as_zeros[5] = kZeroRow;
  for (std::size_t row = 128; row < 256; ++row) as_zeros[row] = kUnusedRow;
  const Tensor map = ex.tensor({count}, DType::i32);
  ex.copy(map.raw(), as_zeros.data(), map.bytes());
  permute_rows(ex, {.x = x, .pair_of = map, .rows = want.numbers});
  quantise(ex, {.x = want.numbers, .straight = want.straight, .turned = want.turned, .groups = groups});
  quantise_rows(ex, {.x = x, .pair_of = pair_of, .rows = got.numbers, .straight = got.straight, .turned = got.turned});
  got.expect_equal(ex, want, 0, 4, "a map");
}

}  // namespace
}  // namespace megalith::ops
