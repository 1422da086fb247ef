// Built once per instruction set by CMake, with MEGALITH_ISA as the namespace (the rules are in ops/cpu/kernels.h).
#include "megalith/corpus/minhash.h"

namespace megalith::corpus::MEGALITH_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
typedef std::uint32_t Vec __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
constexpr std::size_t kLanes = kVectorBytes / 4;

static inline Vec load(const std::uint32_t* p) { return *reinterpret_cast<const Unaligned*>(p); }
static inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }

/// kVectors vectors of hashes stay in registers for all elements.
template <int kVectors>
static void block(const MinHashWork& work, std::size_t first) {
  Vec factor[kVectors], offset[kVectors], minima[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const std::size_t at = first + static_cast<std::size_t>(v) * kLanes;
    factor[v] = load(work.factors + at);
    offset[v] = load(work.offsets + at);
    minima[v] = ~Vec{};
  }
  for (std::size_t i = 0; i < work.size; ++i) {
    const Vec element = work.elements[i] - Vec{};
    for (int v = 0; v < kVectors; ++v) minima[v] = smaller(minima[v], factor[v] * element + offset[v]);
  }
  for (int v = 0; v < kVectors; ++v)
    *reinterpret_cast<Unaligned*>(work.minima + first + static_cast<std::size_t>(v) * kLanes) = minima[v];
}

void minhash(const MinHashWork& work) {
  constexpr int kBlock = 4;
  std::size_t at = 0;
  for (; at + kBlock * kLanes <= work.hashes; at += kBlock * kLanes) block<kBlock>(work, at);
  for (; at + 2 * kLanes <= work.hashes; at += 2 * kLanes) block<2>(work, at);
  for (; at < work.hashes; at += kLanes) block<1>(work, at);
}

}  // namespace megalith::corpus::MEGALITH_ISA
