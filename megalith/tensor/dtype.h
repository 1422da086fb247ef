#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/types.h"

namespace megalith {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u64, u8 };

constexpr Index size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "i32";
    case DType::u64:
      return "u64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// The inverse; nothing for any other text.
constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u64, DType::u8}) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

/// The upper half of an f32: 8 exponent bits, 7 of fraction. Conversion rounds to nearest even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit constexpr bfloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((word >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  explicit constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// IEEE binary16: 5 exponent bits, 10 of fraction. Conversion rounds to nearest even. Too large numbers become
/// infinite, numbers below 2^-24 / 2 become 0. NaN stays NaN.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  explicit constexpr float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // below 2^-14: the spacing is 2^-24, as that of f32 numbers from 0.5 to 1
      const float scaled = std::bit_cast<float>(magnitude) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(scaled) - 0x3f000000u));
    } else {
      const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
      bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
    }
  }
  explicit constexpr operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) {
      const float value = static_cast<float>(magnitude) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint64_t> {
  static constexpr DType value = DType::u64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

/// The dtype of a tensor's statistics (means, sums of exponentials, losses).
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The type in which values of a type are computed and summed: f64 for f64, otherwise f32. The type of
/// statistics_dtype.
template <class T>
struct ArithmeticOf {
  using type = float;
};
template <>
struct ArithmeticOf<double> {
  using type = double;
};
template <class T>
using Arithmetic = typename ArithmeticOf<T>::type;

/// Converts between any two of double, float, bfloat16 and float16. Rounds to nearest even (double to 16 bits by way of
/// float).
template <class To, class From>
constexpr To converted(From value) {
  if constexpr (sizeof(To) == 2 || sizeof(From) == 2)
    return static_cast<To>(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

/// Calls f.template operator()<T>() with T = double or float, for values that are never kept in 16 bits (masters,
/// moments, sums).
template <class F>
decltype(auto) dispatch_wide(DType dtype, std::string_view where, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    default:
      throw BackendError("[" + std::string(where) + "] dtype = " + std::string(name_of(dtype)) + ": needs f64 or f32");
  }
}

/// Calls f.template operator()<T>() with T = double, float, bfloat16 or float16.
template <class F>
decltype(auto) dispatch_float(DType dtype, std::string_view where, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bfloat16>();
    case DType::f16:
      return f.template operator()<float16>();
    default:
      throw BackendError("[" + std::string(where) + "] dtype = " + std::string(name_of(dtype)) +
                         ": needs f64, f32, bf16 or f16");
  }
}

}  // namespace megalith
