#pragma once
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace megalith::ops {

/// Bits of the mantissa to which weights of pairs are rounded before they are compared: 32 in f64, 12 in f32.
template <class T>
inline constexpr int kWeightOrderBits = std::is_same_v<T, double> ? 32 : 12;

/// An integer whose order is that of weights rounded to kWeightOrderBits, halves to even. Tokens with the same past
/// have weights that are equal but for the last bits of sums, which no two grids share. What is dropped must not follow
/// from these bits. Every number has a place: -0 equals 0, and a NaN is beyond the infinity of its sign. The same
/// constexpr code runs on host and device.
template <class T>
constexpr auto weight_order(T weight) {
  using Bits = std::conditional_t<std::is_same_v<T, double>, std::uint64_t, std::uint32_t>;
  constexpr int kDropped = std::numeric_limits<T>::digits - 1 - kWeightOrderBits<T>;
  const Bits bits = std::bit_cast<Bits>(weight), magnitude = bits & static_cast<Bits>(~Bits{0} >> 1);
  const Bits below_half = (Bits{1} << (kDropped - 1)) - 1, is_odd = magnitude >> kDropped & 1;
  const auto rounded = static_cast<std::make_signed_t<Bits>>((magnitude + below_half + is_odd) >> kDropped);
  return bits == magnitude ? rounded : -rounded;
}

}  // namespace megalith::ops
