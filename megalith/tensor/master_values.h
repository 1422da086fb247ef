#pragma once
#include <bit>
#include <cstdint>

#include "megalith/tensor/tensor.h"

namespace megalith {

/// An f32 as the bf16 nearest to it and the rest. For all 2^32 patterns `copy` is that of bfloat16(float), and joined()
/// gives the pattern back: with infinities, subnormal numbers and the payload of NaN.
/// Rounding adds 1 to the upper half where the lower half is above 0x8000, and nothing where it is below. At 0x8000, in
/// the middle between two bf16, both may have led to the same even `copy`, which so stands for 2^16 + 1 patterns; and
/// in a NaN rounding sets the quiet bit. There `carry` tells whether the upper half was changed.
struct SplitF32 {
  std::uint16_t copy = 0, low = 0;
  bool carry = false;  ///< read only where needs_carry()

  static constexpr SplitF32 of(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint16_t copy = bfloat16(value).bits;
    return {copy, static_cast<std::uint16_t>(word), copy != word >> 16};
  }
  constexpr bool is_nan() const { return (copy & 0x7fffu) > 0x7f80u; }
  constexpr bool needs_carry() const { return low == 0x8000u || is_nan(); }
  constexpr float joined() const {
    const std::uint32_t change = is_nan() ? 0x400000u : 0x10000u;
    const bool is_changed = needs_carry() ? carry : low > 0x8000u;
    return std::bit_cast<float>((std::uint32_t{copy} << 16 | low) - (is_changed ? change : 0u));
  }
};

/// The master values of N parameters, in one of two forms, and the 16-bit copy that layers read, if they do not read
/// the masters.
/// - Whole: `whole` has them. `copy`, if there is one, is f16.
/// - Split, of f32 with a copy in bf16: `copy` and `low` hold SplitF32 of each, `carries` its carry. A carry that is
///   not needed has any value. Takes 2 1/8 bytes a parameter beside the copy.
struct MasterValues {
  static constexpr Index kCarries = 64;  ///< in an element of `carries`

  Tensor whole = {};      ///< [N] f32 or f64; undefined in the split form
  Tensor copy = {};       ///< [N] bf16, or f16; undefined if layers read `whole`
  Tensor low = {};        ///< u8 [N, 2]: two bytes of each; undefined in the whole form
  Tensor carries = {};    ///< u64: element i has bit (first_carry + i) % 64 of number (first_carry + i) / 64
  Index first_carry = 0;  ///< [0, kCarries)

  explicit operator bool() const { return static_cast<bool>(whole) || is_split(); }
  bool is_split() const { return static_cast<bool>(low); }
  DType dtype() const { return is_split() ? DType::f32 : whole.dtype(); }
  Index numel() const { return is_split() ? low.dim(0) : whole.numel(); }
  Index whole_bytes() const { return numel() * size_of(dtype()); }
  /// Elements [begin, begin + count), flat.
  MasterValues rows(Index begin, Index count) const {
    const auto part = [&](const Tensor& tensor) {
      return tensor ? tensor.reshaped({tensor.numel()}).rows(begin, count) : Tensor();
    };
    if (!is_split()) return {.whole = part(whole), .copy = part(copy)};
    const Index first = first_carry + begin, number = first / kCarries;
    return {.copy = part(copy),
            .low = low.rows(begin, count),
            .carries = carries.rows(number, ceil_div(first + count, kCarries) - number),
            .first_carry = first % kCarries};
  }
};

}  // namespace megalith
