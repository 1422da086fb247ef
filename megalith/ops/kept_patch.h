#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "megalith/base/philox.h"

namespace megalith::ops {

/// Which probabilities of attention dropout keeps. Every element (head, query i, key j) has a number of 16 bits, and is
/// kept if that is at least the threshold, so P(drop) = threshold / 2^16, and what is kept is scaled by 1 / P(keep).
///
/// The scores of a head are cut into patches of 16 queries x 64 keys, row by row. A patch has 32 groups of 32 elements,
/// and a group has four consecutive Philox4x32-7 blocks, which are 16 words. Bit b of word k is bit k of the number of
/// the group's element b. In a patch, element (i, j) is of group 4 (i % 8) + j % 8 / 2, and there b is
///   16 (j % 2) + 4 (j / 16 % 4) + 2 (i / 8 % 2) + j / 8 % 2.
/// So group l has what lane l of a warp holds of a product's sums for 16 x 64 elements on tensor cores. Comparing 32
/// numbers with the threshold takes 16 bitwise operations (KeptBits). Swapping i and j in 16 x 16 elements moves bits
/// between lanes as the transposition of 8 x 8 elements of 16 bits does, and 2 (i / 8 % 2) with j / 8 % 2.
///
/// A head has a multiple of 2^32 blocks. The head's number is thus the upper half of a block's, until patches of one
/// head need more than 2^32 blocks (sequences of over 185,000 tokens).
struct KeptPatch {
  static constexpr int kRounds = 7;  ///< of Philox
  static constexpr int kQueries = 16, kKeys = 64;
  static constexpr int kGroups = 32;  ///< of 32 elements each
  static constexpr int kNumberBits = 16;
  static constexpr int kGroupBlocks = kNumberBits / 4, kBlocks = kGroups * kGroupBlocks;
};

/// P(drop) is the nearest multiple of 2^-16 below 1. It is 0 for a probability under 2^-17.
constexpr std::uint32_t attention_dropout_threshold(double probability) {
  return std::min((static_cast<std::uint32_t>(probability * 131072.0) + 1) / 2, 65535u);
}
/// 1 / P(keep)
constexpr double attention_kept_scale(double probability) {
  return 65536.0 / (65536.0 - attention_dropout_threshold(probability));
}

/// Patches next to each other in a head of seq_len keys.
constexpr std::uint64_t kept_patch_columns(Index seq_len) {
  return static_cast<std::uint64_t>((seq_len + KeptPatch::kKeys - 1) / KeptPatch::kKeys);
}
/// Blocks from one head to the next.
constexpr std::uint64_t kept_head_blocks(Index seq_len) {
  const auto rows = static_cast<std::uint64_t>((seq_len + KeptPatch::kQueries - 1) / KeptPatch::kQueries);
  const std::uint64_t blocks = rows * kept_patch_columns(seq_len) * KeptPatch::kBlocks;
  return (blocks + 0xffffffffu) >> 32 << 32;
}
/// The first block of the patch of (query, key), from the head's first block on.
constexpr std::uint64_t kept_patch_block(Index seq_len, Index query, Index key) {
  return (static_cast<std::uint64_t>(query / KeptPatch::kQueries) * kept_patch_columns(seq_len) +
          static_cast<std::uint64_t>(key / KeptPatch::kKeys)) *
         KeptPatch::kBlocks;
}
constexpr int kept_group(Index query, Index key) { return static_cast<int>(4 * (query % 8) + key % 8 / 2); }
/// The element's place in its group.
constexpr int kept_bit(Index query, Index key) {
  return static_cast<int>(16 * (key % 2) + 4 * (key / 16 % 4) + 2 * (query / 8 % 2) + key / 8 % 2);
}

/// What the bits of a group's words, the lowest first, make of bits that are all 1: those of the elements that are
/// kept. Source: comparison of two numbers from the lowest bit on.
struct KeptBits {
  std::uint32_t bits = ~std::uint32_t{0};
  /// `word` has bit k of each number, `threshold_bit` is that of the threshold.
  constexpr void add(std::uint32_t word, bool threshold_bit) { bits = threshold_bit ? bits & word : bits | word; }
};

/// The elements of a group that are kept. `block` is the group's first.
constexpr std::uint32_t kept_elements(const RandomSite& site, std::uint64_t block, std::uint32_t threshold) {
  KeptBits kept;
  for (int n = 0; n < KeptPatch::kGroupBlocks; ++n) {
    const Philox4 words = site.block<KeptPatch::kRounds>(block + static_cast<unsigned>(n));
    for (std::size_t k = 0; k < 4; ++k, threshold >>= 1) kept.add(words[k], (threshold & 1u) != 0);
  }
  return kept.bits;
}

// A warp's product of 16 x N elements leaves lane l with sums 4 t + 2 h + e of row l / 4 + 8 h, column 8 t + 2 (l % 4)
// + e.

/// The bit of sum i of queries x keys, 16 x 64, in the lane's group of the patch.
constexpr std::uint32_t kept_bit_of_queries(int i) {
  return 1u << (i % 2 * 16 + i / 8 * 4 + i / 2 % 2 * 2 + i / 4 % 2);
}

/// The bits of keys x queries, 16 x 64, from the groups of four patches below each other. The groups are those of the
/// lane's place, each transposed over the warp as 8 x 8 elements of 16 bits, of which a lane has [l / 4][2 (l % 4)] and
/// the next. `sixteen`: which 16 of the 64 keys. Bit 16 e + 4 r + 2 h + j is that of query 16 r + 8 h + 2 (l % 4) + e
/// and key 8 j + l / 4.
constexpr std::uint32_t kept_of_sixteen_keys(const std::uint32_t (&groups)[4], int sixteen) {
  std::uint32_t bits = 0;
  for (int r = 0; r < 4; ++r) bits |= std::rotr(groups[r], 4 * (sixteen - r)) & 0x000f000fu << 4 * r;
  return bits;
}
/// The bit of sum i in these.
constexpr std::uint32_t kept_bit_of_keys(int i) { return 1u << (i % 2 * 16 + i / 8 * 4 + i / 4 % 2 * 2 + i / 2 % 2); }

/// What a call's groups have in common, prepared so that a kernel finds it in constant memory. The upper half of a
/// block's number must be that of all blocks of the head: sequences of at most kMaxKeptSeqLen.
struct KeptRounds {
  std::uint32_t key0[KeptPatch::kRounds] = {}, key1[KeptPatch::kRounds] = {};
  std::uint32_t zero_bit[KeptPatch::kNumberBits] = {};  ///< all ones where that bit of the threshold is 0, else 0
  std::uint32_t site = 0;

  static constexpr KeptRounds of(std::uint64_t seed, std::uint32_t site, double probability) {
    KeptRounds rounds;
    rounds.site = site;
    auto low = static_cast<std::uint32_t>(seed), high = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < KeptPatch::kRounds; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
      rounds.key0[round] = low;
      rounds.key1[round] = high;
    }
    const std::uint32_t threshold = attention_dropout_threshold(probability);
    for (int k = 0; k < KeptPatch::kNumberBits; ++k) rounds.zero_bit[k] = (threshold >> k & 1u) != 0 ? 0 : ~0u;
    return rounds;
  }

  /// kept_elements() of the group whose first block is 2^32 head + block, or a part of that work: from `bits`, which
  /// the blocks before kFirst have left, by the blocks before kEnd. Per block 7 x 2 products of 64 bits and as many
  /// xors of three words, less what the blocks of a head have in common: 100 instructions for a group. Then 16 to
  /// compare.
  template <unsigned kFirst = 0, unsigned kEnd = KeptPatch::kGroupBlocks>
  constexpr std::uint32_t group(std::uint32_t block, std::uint32_t head, std::uint32_t step,
                                std::uint32_t bits = ~0u) const {
    for (unsigned n = kFirst; n < kEnd; ++n) {
      std::uint32_t c0 = block + n, c1 = head, c2 = site, c3 = step;
      for (int round = 0; round < KeptPatch::kRounds; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ key0[round];
        c1 = static_cast<std::uint32_t>(p1);
        c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ key1[round];
        c3 = static_cast<std::uint32_t>(p0);
      }
      const std::uint32_t words[4] = {c0, c1, c2, c3};
      for (unsigned k = 0; k < 4; ++k) bits = (bits & words[k]) | (zero_bit[4 * n + k] & (bits | words[k]));
    }
    return bits;
  }
};
inline constexpr Index kMaxKeptSeqLen = 1 << 17;
static_assert(kept_head_blocks(kMaxKeptSeqLen) == std::uint64_t{1} << 32);

/// Whether one element is kept. `head` is the global number of (sample, head): sample * num_global_heads + head. For
/// tests and references, as 31 others are drawn with it.
constexpr bool is_kept(const RandomSite& site, double probability, std::uint64_t head, Index seq_len, Index query,
                       Index key) {
  const std::uint64_t block = head * kept_head_blocks(seq_len) + kept_patch_block(seq_len, query, key) +
                              static_cast<unsigned>(kept_group(query, key)) * KeptPatch::kGroupBlocks;
  return (kept_elements(site, block, attention_dropout_threshold(probability)) >> kept_bit(query, key) & 1u) != 0;
}

}  // namespace megalith::ops
