#pragma once
#include "megalith/ops/cpu/isa/vec.h"
#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

using Words =
    Vec<std::uint64_t>;  // one 32-bit word of one Philox counter per 64-bit lane; the upper halves are ignored

/// The products of the lower halves, 64 bits each.
inline Words mul32(Words a, Words b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// Lanes 0, 2, ... (kOdd 0) or 1, 3, ... (kOdd 1) of a and b in turn.
template <int kOdd>
inline Words interleave(Words a, Words b) {
  constexpr std::uint64_t kCount = kVectorBytes / 8, kFirst = kOdd;
  Words index;
  for (std::uint64_t i = 0; i < kCount; i += 2) {
    index[i] = i + kFirst;
    index[i + 1] = kCount + i + kFirst;
  }
  return __builtin_shuffle(a, b, index);
}

/// The rounds' keys. They are broadcast once and not once per batch.
struct RoundKeys {
  explicit RoundKeys(std::uint64_t seed) {
    std::uint32_t low = static_cast<std::uint32_t>(seed), high = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
      key0[round] = splat(std::uint64_t{low});
      key1[round] = splat(std::uint64_t{high});
    }
  }
  Words key0[10], key1[10];
};

inline constexpr int kChains = 2;  // independent counters in flight: one round's latency is several times its work
inline constexpr Index kWordsPerBatch = kChains * kVectorBytes / 2;

/// The words of kWordsPerBatch elements from 4 * block on: Philox4x32 on one counter per lane. It must equal
/// base/philox.h; a test compares them.
template <int kRounds = 10>
inline void philox_batch(const RoundKeys& keys, const WordStream& stream, std::uint64_t block, std::uint32_t* out) {
  constexpr std::uint64_t kCount = kVectorBytes / 8;
  Words index;  // counters in the order in which the two interleaves below put them back in sequence
  for (std::uint64_t i = 0; i < kCount; ++i) index[i] = i / 2 + (i % 2) * (kCount / 2);
  const Words m0 = splat(std::uint64_t{0xD2511F53u}), m1 = splat(std::uint64_t{0xCD9E8D57u});
  Words c0[kChains], c1[kChains], c2[kChains], c3[kChains];
#pragma GCC unroll 2
  for (int chain = 0; chain < kChains; ++chain) {
    c0[chain] = index + (block + static_cast<std::uint64_t>(chain) * kCount);
    c1[chain] = c0[chain] >> 32;
    c2[chain] = splat(std::uint64_t{stream.site});
    c3[chain] = splat(std::uint64_t{stream.step});
  }
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) {
      const Words p0 = mul32(m0, c0[chain]), p1 = mul32(m1, c2[chain]);
      c0[chain] = (p1 >> 32) ^ c1[chain] ^ keys.key0[round];
      c2[chain] = (p0 >> 32) ^ c3[chain] ^ keys.key1[round];
      c1[chain] = p1;
      c3[chain] = p0;
    }
  }
#pragma GCC unroll 2
  for (int chain = 0; chain < kChains; ++chain, out += kVectorBytes / 2) {
    const Words first = (c0[chain] & 0xffffffffu) | (c1[chain] << 32),
                second = (c2[chain] & 0xffffffffu) | (c3[chain] << 32);
    const Words low = interleave<0>(first, second), high = interleave<1>(first, second);
    __builtin_memcpy(out, &low, sizeof low);
    __builtin_memcpy(out + kVectorBytes / 4, &high, sizeof high);
  }
}

inline constexpr Index kKeepPiece = 512;

/// The words of a stream, for kKeepPiece elements at most. They are drawn into a buffer in the first-level cache.
/// Elements need not start at a multiple of four.
class RandomWords {
 public:
  explicit RandomWords(const WordStream& stream) : stream_(stream), keys_(stream.seed) {}

  /// The words of elements [element, element + n), n <= kKeepPiece. The result is valid until the next call.
  const std::uint32_t* operator()(std::uint64_t element, Index n) {
    const Index head = static_cast<Index>(element % 4);
    for (Index i = 0; i < head + n; i += kWordsPerBatch)
      philox_batch(keys_, stream_, element / 4 + static_cast<std::uint64_t>(i) / 4, words_ + i);
    return words_ + head;
  }

 private:
  WordStream stream_;
  RoundKeys keys_;
  alignas(64) std::uint32_t words_[kKeepPiece + 4 + kWordsPerBatch];
};

/// The factors of a dropout: 0 or kept_scale, for kKeepPiece elements at most.
template <class T>
class KeepFactors {
 public:
  explicit KeepFactors(const DropoutStream& stream)
      : stream_(stream), random_({.seed = stream.seed, .step = stream.step, .site = stream.site}) {}

  /// For elements [element, element + n), n <= kKeepPiece. The result is valid until the next call.
  const T* operator()(std::uint64_t element, Index n) {
    const std::uint32_t* const words = random_(element, n);
    const T kept = static_cast<T>(stream_.kept_scale);
    const std::uint32_t threshold = stream_.threshold;
    for (Index i = 0; i < n; ++i) factors_[i] = words[i] >= threshold ? kept : T{0};
    return factors_;
  }

 private:
  DropoutStream stream_;
  RandomWords random_;
  alignas(64) T factors_[kKeepPiece];
};

inline constexpr Index kPatchKeys = 64;
inline constexpr Index kMaxRowKeys = 256;  // of a tile of attention

/// The factors of attention's dropout for one query, 0 or kept_scale (ops/kept_patch.h has the numbering, which a test
/// compares). The other half of a group's elements, those of another query, is drawn again for that one.
template <class T>
class KeptKeys {
 public:
  explicit KeptKeys(const DropoutStream& stream) : stream_(stream), keys_(stream.seed) {}

  /// For keys [key, key + n) of a head of seq_len, n <= kMaxRowKeys. head_block: the head's first block. The result is
  /// valid until the next call.
  const T* operator()(std::uint64_t head_block, Index seq_len, Index query, Index key, Index n) {
    const Index columns = (seq_len + kPatchKeys - 1) / kPatchKeys, first = key / kPatchKeys;
    const Index last = (key + n - 1) / kPatchKeys;
    for (Index column = first; column <= last; ++column) {
      const auto block = static_cast<std::uint64_t>((query / 16 * columns + column) * 128 + query % 8 * 16);
      draw(head_block + block, query / 8 % 2 * 2, factors_ + (column - first) * kPatchKeys);
    }
    return factors_ + key % kPatchKeys;
  }

 private:
  /// Of 64 keys. `block`: the first of 16, for the query's four groups of a patch.
  void draw(std::uint64_t block, Index query_bit, T* factors) {
    constexpr Index kWords = 64, kBatchBlocks = kWordsPerBatch / 4;
    for (Index i = 0; i < kWords / 4; i += kBatchBlocks) {
      philox_batch<7>(keys_, {.seed = stream_.seed, .step = stream_.step, .site = stream_.site},
                      block + static_cast<std::uint64_t>(i), words_ + 4 * i);
    }
    const T of_bit[2] = {T{0}, static_cast<T>(stream_.kept_scale)};
    for (Index group = 0; group < 4; ++group) {
      std::uint32_t bits = 0xffffffffu;
      for (Index k = 0; k < 16; ++k) {
        const std::uint32_t word = words_[16 * group + k];
        bits = (stream_.attention_threshold >> k & 1u) != 0 ? bits & word : bits | word;
      }
      bits >>= query_bit;
      for (Index sixteen = 0; sixteen < 4; ++sixteen) {  // keys 16 sixteen + 8 eight + 2 group + odd
        for (Index eight = 0; eight < 2; ++eight) {
          for (Index odd = 0; odd < 2; ++odd)
            factors[16 * sixteen + 8 * eight + 2 * group + odd] = of_bit[bits >> (16 * odd + 4 * sixteen + eight) & 1u];
        }
      }
    }
  }

  DropoutStream stream_;
  RoundKeys keys_;
  alignas(64) std::uint32_t words_[64];
  alignas(64) T factors_[kMaxRowKeys + kPatchKeys];
};

}  // namespace megalith::ops::cpu::MEGALITH_ISA
