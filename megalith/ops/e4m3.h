#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "megalith/base/types.h"

namespace megalith::ops {

// The numbers of FP8 operands, defined once. Host and device run this constexpr code, or an instruction that gives the
// same bits. A block of elements shares a scale:
//   scale = max(amax, 448 * 2^-126) / 448, amax the largest finite magnitude of the block
//   code  = e4m3_code(x * (1 / scale)), and x is about e4m3_value(code) * scale
// Each division and product is one f32 operation, rounded to nearest even. So the smallest scale is 2^-126, also of a
// block of zeros; neither a scale nor its inverse is a denormal number, and no finite x overflows.

/// Elements along one side of a block.
inline constexpr Index kScaleBlock = 128;
/// The largest number of E4M3, and the code of NaN. E4M3 has no infinity.
inline constexpr float kE4m3Max = 448;
inline constexpr std::uint8_t kE4m3Nan = 0x7f;

/// How a scale is rounded: to f32, or up to a power of two. With the latter x * (1 / scale) and the products of scales
/// are exact, but up to half of E4M3's range above the largest element stays unused.
enum class ScaleForm : std::uint8_t { f32, power_of_two };

/// 1 sign bit, 4 exponent bits with bias 7, 3 of fraction; below 2^-6 the spacing is 2^-9. Rounds to nearest even.
/// Numbers beyond 448 become 448 with their sign. NaN and infinity become kE4m3Nan, so that they are not lost. Source:
/// Micikevicius et al. 2022, arXiv:2209.05433.
constexpr std::uint8_t e4m3_code(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (word >> 24) & 0x80u, magnitude = word & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return kE4m3Nan;
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // from 448 on
  if (magnitude < 0x3c800000u) {  // below 2^-6: the spacing is that of f32 numbers from 2^14 on
    const float scaled = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(scaled) - 0x46800000u));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u;
  return static_cast<std::uint8_t>(sign | (rounded >> 20));
}

constexpr float e4m3_value(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80u} << 24, magnitude = code & 0x7fu;
  if (magnitude == kE4m3Nan) return std::numeric_limits<float>::quiet_NaN();
  const float value =
      magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f : std::bit_cast<float>((magnitude << 20) + 0x3c000000u);
  return sign != 0 ? -value : value;
}

/// What an element adds to the maximum of its block, as f32 bits, whose order is that of the numbers. NaN and infinity
/// add nothing.
constexpr std::uint32_t finite_magnitude(float value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
  return magnitude < 0x7f800000u ? magnitude : 0;
}

/// The scale of a block, from the maximum of finite_magnitude().
constexpr float block_scale(std::uint32_t amax, ScaleForm form) {
  constexpr float kLeast = kE4m3Max * 0x1p-126f;
  const float largest = std::bit_cast<float>(amax);
  const float scale = (largest < kLeast ? kLeast : largest) / kE4m3Max;
  if (form == ScaleForm::f32) return scale;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(scale) + 0x7fffffu) & 0xff800000u);
}

}  // namespace megalith::ops
