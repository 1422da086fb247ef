#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "megalith/base/types.h"

namespace megalith {

/// Counter-based random numbers: what is drawn is a function of (seed, step, site, global element) and of nothing else,
/// so every grid, a recomputation and a replayed graph draw the same. The same constexpr code runs on host and device.
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10). Seven rounds pass the
/// tests of BigCrush too (its table 2).
using Philox4 = std::array<std::uint32_t, 4>;

template <int kRounds = 10>
constexpr Philox4 philox4x32(Philox4 counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// One named stream of random words.
struct RandomSite {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t site = 0;  ///< which tensor: layer and place, see random_site()

  /// Words of the global elements 4*block .. 4*block+3.
  template <int kRounds = 10>
  constexpr Philox4 block(std::uint64_t block_index) const {
    return philox4x32<kRounds>(
        {static_cast<std::uint32_t>(block_index), static_cast<std::uint32_t>(block_index >> 32), site, step},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  }
  constexpr std::uint32_t word(std::uint64_t element) const { return block(element / 4)[element % 4]; }
  /// A standard normal number for a global element (Box-Muller on the two words of a pair).
  constexpr double normal(std::uint64_t element) const {
    const Philox4 words = block(element / 2);
    const double u1 = (static_cast<double>((std::uint64_t{words[0]} << 21) ^ (words[1] >> 11)) + 1.0) * 0x1p-53;
    const double u2 = static_cast<double>((std::uint64_t{words[2]} << 21) ^ (words[3] >> 11)) * 0x1p-53;
    const double radius = std::sqrt(-2.0 * std::log(u1));
    const double angle = 2.0 * 3.14159265358979323846 * u2;
    return element % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
  }
};

/// Dropout keeps an element when its random word is at least this: P(drop) = threshold / 2^32.
constexpr std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 4294967296.0);
}

}  // namespace megalith
