#pragma once
#include <bit>
#include <cstdint>

#include "megalith/base/philox.h"
#include "megalith/tensor/tensor.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith::ops {

/// Elements of flat buffers that share one entry of tables about them (AdamW::decays). Parameters start at multiples of
/// this number.
inline constexpr Index kDecayGroup = 64;

/// Where the elements of a parameter lie in its global tensor. The random words that round its moments are a function
/// of (seed, name, update, global element), so every grid rounds alike. Lies in device memory.
struct RoundedParam {
  std::uint64_t seed = 0;  ///< of the run and the name
  std::int64_t begin = 0;  ///< the parameter's first element in its flat buffer
  std::int64_t first = 0;  ///< that element in the global tensor
  /// Element i of the parameter is element first + i / run * stride + i % run of the global tensor.
  std::int64_t run = 1, stride = 0;

  /// `begin`: of the slice, in the flat buffer. Throws InternalError for a slice whose elements do not lie in runs of
  /// equal distance.
  static RoundedParam of(const TensorSlice& slice, Index begin, std::uint64_t seed);

  constexpr std::uint64_t global(std::int64_t i) const {
    return static_cast<std::uint64_t>(i < run ? first + i : first + i / run * stride + i % run);
  }
  constexpr RandomSite site(std::int64_t update) const {
    return {.seed = seed, .step = static_cast<std::uint32_t>(update), .site = 0};
  }
};
static_assert(sizeof(RoundedParam) == 5 * 8);  // no padding

/// The parameters of the elements of an op over flat buffers, for moments in bf16.
struct MomentRounding {
  Tensor params = {};    // in  u8 [P * sizeof(RoundedParam)]
  Tensor param_of = {};  // in  [N / kDecayGroup, rounded up] i32: of each group, in `params`
  Index first = 0;       // of the op's first element, in the flat buffer of RoundedParam::begin
};

/// The bits of a bf16 next to x: the larger magnitude with the probability of the distance to the smaller one over
/// their distance. `random`: 16 uniform bits. The expectation is x. A bf16 stays what it is, and so do infinity and
/// NaN. Source: Gupta et al. 2015, arXiv:1502.02551, section 3.
constexpr std::uint16_t stochastically_rounded(float x, std::uint32_t random) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude >= 0x7f800000u)
    return static_cast<std::uint16_t>((word >> 16) | (magnitude > 0x7f800000u ? 0x40u : 0u));
  return static_cast<std::uint16_t>((word + random) >> 16);
}
/// The halves of a random word round the two moments of an element.
constexpr std::uint32_t first_moment_bits(std::uint32_t word) { return word & 0xffffu; }
constexpr std::uint32_t second_moment_bits(std::uint32_t word) { return word >> 16; }

}  // namespace megalith::ops
