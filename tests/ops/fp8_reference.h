#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops {

// E4M3 and its blocks by their definitions in f64, without the bit arithmetic of ops/e4m3.h.

/// The number of a code; NaN for the two codes of NaN.
inline double e4m3_number(int code) {
  const int exponent = code / 8 % 16, fraction = code % 8;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code >= 128 ? -size : size;
}

/// The code of the nearest number, found in the list of all. Of two that are as near, the even one.
inline int nearest_e4m3(double x) {
  static const std::vector<double> numbers = [] {
    std::vector<double> all;
    for (int code = 0; code < 0x7f; ++code) all.push_back(e4m3_number(code));
    return all;
  }();
  if (!std::isfinite(x)) return 0x7f;
  const double size = std::abs(x);
  int code = 0x7e;
  if (const auto above = std::ranges::lower_bound(numbers, size); above != numbers.end()) {
    code = static_cast<int>(above - numbers.begin());
    if (code > 0) {
      const double up = *above - size, down = size - above[-1];
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
  }
  return std::signbit(x) ? code + 128 : code;
}

/// A quotient or product of two f32 numbers in f64, rounded to f32, is that of f32: 53 bits are enough for 24.
inline float reference_scale(double amax, ScaleForm form) {
  const auto scale = static_cast<float>(std::max(amax, 448 * std::ldexp(1.0, -126)) / 448);
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);
  if (form == ScaleForm::f32 || fraction == 0.5f) return scale;
  return std::ldexp(1.0f, exponent);
}

struct Fp8Matrix {
  std::vector<std::uint8_t> codes;  // [R, K]
  std::vector<float> scales;        // as of an Operand
};

/// x [R, K].
inline Fp8Matrix reference_fp8(const std::vector<float>& x, Index rows, Index depth, ScaleBlocks blocks,
                               ScaleForm form) {
  const auto at = [&](Index r, Index k) { return x[static_cast<std::size_t>(r * depth + k)]; };
  const Shape shape = scales_shape(blocks, rows, depth);
  Fp8Matrix out{std::vector<std::uint8_t>(x.size()), std::vector<float>(static_cast<std::size_t>(shape.numel()), 1)};
  const Index block_rows = blocks == ScaleBlocks::squares ? 128 : 1;
  for (Index row = 0; row < rows; row += block_rows) {
    for (Index k = 0; k < depth; k += 128) {
      double amax = 0;
      const Index row_end = std::min(rows, row + block_rows), k_end = std::min(depth, k + 128);
      for (Index r = row; r < row_end; ++r) {
        for (Index c = k; c < k_end; ++c)
          if (std::isfinite(at(r, c))) amax = std::max(amax, std::abs(static_cast<double>(at(r, c))));
      }
      const float scale = reference_scale(amax, form), inverse = static_cast<float>(1 / static_cast<double>(scale));
      const Index place = blocks == ScaleBlocks::squares ? row / 128 * shape[1] + k / 128 : k / 128 * shape[1] + row;
      out.scales[static_cast<std::size_t>(place)] = scale;
      for (Index r = row; r < row_end; ++r) {
        for (Index c = k; c < k_end; ++c) {
          const auto scaled = static_cast<float>(static_cast<double>(at(r, c)) * static_cast<double>(inverse));
          out.codes[static_cast<std::size_t>(r * depth + c)] = static_cast<std::uint8_t>(nearest_e4m3(scaled));
        }
      }
    }
  }
  return out;
}

/// The numbers [R, K] of an operand in f64.
inline std::vector<double> numbers_of(const Fp8Matrix& matrix, Index rows, Index depth, ScaleBlocks blocks) {
  const Index stride = scales_shape(blocks, rows, depth)[1];
  std::vector<double> out(matrix.codes.size());
  for (Index r = 0; r < rows; ++r) {
    for (Index k = 0; k < depth; ++k) {
      const Index place = blocks == ScaleBlocks::squares ? r / 128 * stride + k / 128 : k / 128 * stride + r;
      const auto i = static_cast<std::size_t>(r * depth + k);
      out[i] = e4m3_number(matrix.codes[i]) * static_cast<double>(matrix.scales[static_cast<std::size_t>(place)]);
    }
  }
  return out;
}

/// Numbers of both signs, whose size varies by 2^20 within a block and by much more between stretches of 64. Some
/// stretches are 0, some are denormal numbers of f32, some are near its largest. Every 997th is an infinity or NaN.
inline std::vector<float> fp8_test_numbers(Index count, std::uint32_t seed) {
  constexpr int kExponents[] = {0, -3, 40, -200, -140, -128, 108, 5, 1, -20};
  const RandomSite site{.seed = seed};
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Philox4 words = site.block(i);
    const double fraction = i % 3 == 0 ? (words[0] >> 28) * 0x1p-4 : words[0] * 0x1p-32;  // also halfway cases
    const int exponent = kExponents[site.block(i / 64)[3] % std::size(kExponents)] - static_cast<int>(words[1] % 20);
    const double size = exponent < -150 ? 0 : std::ldexp(1 + fraction, exponent);
    numbers[i] = static_cast<float>(words[2] % 2 == 0 ? size : -size);
    if (i % 997 == 996) numbers[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : NAN;
  }
  return numbers;
}

inline std::vector<float> transposed(const std::vector<float>& x, Index rows, Index columns) {
  std::vector<float> out(x.size());
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = x[static_cast<std::size_t>(r * columns + c)];
  }
  return out;
}

/// What stands in an operand of a device.
inline Fp8Matrix read_operand(Exec& ex, const Operand& operand) {
  Fp8Matrix out{std::vector<std::uint8_t>(static_cast<std::size_t>(operand.values.numel())),
                std::vector<float>(static_cast<std::size_t>(operand.scales.numel()))};
  ex.copy(out.codes.data(), operand.values.raw(), operand.values.bytes());
  ex.copy(out.scales.data(), operand.scales.raw(), operand.scales.bytes());
  ex.synchronize();
  return out;
}

/// "" or what differs first, bit by bit.
inline std::string difference(const Fp8Matrix& got, const Fp8Matrix& want) {
  if (got.codes.size() != want.codes.size() || got.scales.size() != want.scales.size()) return "the sizes";
  for (std::size_t i = 0; i < want.scales.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(got.scales[i]) != std::bit_cast<std::uint32_t>(want.scales[i]))
      return str("scale ", i, " is ", got.scales[i], ", must be ", want.scales[i]);
  }
  for (std::size_t i = 0; i < want.codes.size(); ++i) {
    if (got.codes[i] != want.codes[i])
      return str("code ", i, " is ", int{got.codes[i]}, ", must be ", int{want.codes[i]});
  }
  return "";
}

}  // namespace megalith::ops
