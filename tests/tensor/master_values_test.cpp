#include "megalith/tensor/master_values.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/team.h"

#include "tests/support/sweep.h"

namespace megalith {
namespace {

/// Whether the halves of a pattern give it back, with the copy that a conversion makes. A carry that is not needed is
/// the opposite of what of() says.
bool comes_back(std::uint32_t word) {
  const auto value = std::bit_cast<float>(word);
  SplitF32 split = SplitF32::of(value);
  const bool has_copy = split.copy == bfloat16(value).bits;
  if (!split.needs_carry()) split.carry = !split.carry;
  return has_copy && std::bit_cast<std::uint32_t>(split.joined()) == word;
}

/// All lower halves of some upper ones, and some lower ones of all upper ones; all 2^32 patterns in scripts/test-all.
TEST(SplitF32, PatternsComeBack) {
  constexpr std::uint32_t kHalves = 1u << 16;
  const auto stride = static_cast<std::uint32_t>(support::sweep_stride(31));
  // 0, subnormal numbers, 1, the largest numbers, infinity, NaN.
  constexpr std::uint32_t kEnds[] = {0x0,    0x1,    0x7f,   0x80,   0x3f80, 0x3f81, 0x7f7e,
                                     0x7f7f, 0x7f80, 0x7f81, 0x7fbf, 0x7fc0, 0x7fff};
  std::vector<std::uint32_t> wrong(kHalves);  // by upper half
  share(kHalves, [&](Index i) {
    const auto upper = static_cast<std::uint32_t>(i);
    const auto count = [&](std::uint32_t low) { wrong[upper] += comes_back(upper << 16 | low) ? 0 : 1; };
    const bool is_swept = upper % stride == 0 || std::ranges::find(kEnds, upper & 0x7fffu) != std::end(kEnds);
    for (std::uint32_t low = 0; is_swept && low < kHalves; ++low) count(low);
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) count(low);
  });
  for (std::uint32_t upper = 0; upper < kHalves; ++upper) ASSERT_EQ(wrong[upper], 0u) << std::hex << upper;
}

TEST(SplitF32, KnowsTheSidesOfTies) {
  const auto split = [](std::uint32_t word) { return SplitF32::of(std::bit_cast<float>(word)); };
  for (const auto& [word, copy, needs, carry] : {std::tuple(0x3f807fffu, 0x3f80, false, false),
                                                 {0x3f808000u, 0x3f80, true, false},  // 1 and half a step: to even
                                                 {0x3f808001u, 0x3f81, false, true},
                                                 {0x3f818000u, 0x3f82, true, true},
                                                 {0x3f828000u, 0x3f82, true, false},
                                                 {0x7f7fffffu, 0x7f80, false, true},  // rounds to infinity
                                                 {0x00008000u, 0x0000, true, false},
                                                 {0x80018000u, 0x8002, true, true},
                                                 {0x7f800001u, 0x7fc0, true, true},  // NaN of its last bit
                                                 {0xffc00000u, 0xffc0, true, false}}) {
    SCOPED_TRACE(::testing::Message() << std::hex << word);
    EXPECT_EQ(split(word).copy, copy);
    EXPECT_EQ(split(word).low, word & 0xffffu);
    EXPECT_EQ(split(word).needs_carry(), needs);
    EXPECT_EQ(split(word).carry, carry);
  }
}

TEST(MasterValues, RowsOfSplitOnesKeepTheirCarries) {
  std::uint64_t words[4] = {};
  const MasterValues all{.copy = Tensor(nullptr, {200}, DType::bf16),
                         .low = Tensor(nullptr, {200, 2}, DType::u8),
                         .carries = Tensor(words, {4}, DType::u64),
                         .first_carry = 10};
  const MasterValues rows = all.rows(50, 100).rows(20, 60);  // bits 80 to 139
  EXPECT_EQ(rows.numel(), 60);
  EXPECT_EQ(rows.copy.numel(), 60);
  EXPECT_EQ(rows.low.shape(), Shape({60, 2}));
  EXPECT_EQ(rows.first_carry, 16);
  EXPECT_EQ(rows.carries.raw(), words + 1);
  EXPECT_EQ(rows.carries.numel(), 2);
  EXPECT_EQ(rows.dtype(), DType::f32);
  EXPECT_EQ(rows.whole_bytes(), 240);
}

TEST(MasterValues, RowsOfWholeOnesAreFlat) {
  const MasterValues all{.whole = Tensor(nullptr, {4, 5}, DType::f64)};
  EXPECT_EQ(all.rows(3, 9).whole.shape(), Shape({9}));
  EXPECT_FALSE(all.rows(3, 9).copy);
  EXPECT_EQ(all.dtype(), DType::f64);
  EXPECT_FALSE(MasterValues{});
  EXPECT_TRUE(all);
}

}  // namespace
}  // namespace megalith
