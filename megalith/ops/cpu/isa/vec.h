#pragma once
// Vectors of one instruction set, for the sources of cpu/isa/ only (the rules are in cpu/kernels.h).
#include <cstdint>

#include "megalith/tensor/dtype.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef MEGALITH_ISA
#error "cpu/isa is built by CMake once per instruction set, with MEGALITH_ISA as the namespace"
#endif

namespace megalith::ops::cpu::MEGALITH_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;
template <class T>
inline constexpr Index kLanes = kVectorBytes / static_cast<Index>(sizeof(T));

template <class T>
struct IntOf;  // the type of a comparison of Vec<T>
template <>
struct IntOf<float> {
  using type = std::int32_t;
};
template <>
struct IntOf<double> {
  using type = std::int64_t;
};

inline constexpr float kInfinity = __builtin_huge_valf();

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}

// Numbers stored in 16 bits are computed in f32. They are widened when they are loaded, and rounded to nearest even
// when they are stored. The conversions use the integer arithmetic of the scalar ones (tensor/dtype.h) on every
// instruction set.

using Bits16 = std::uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using Bits32 = Vec<std::uint32_t>;

template <class S>
inline constexpr bool kIs16Bit = sizeof(S) == 2;

template <class S>
inline Vec<float> widened(Bits16 bits);
template <class S>
inline Bits16 rounded(Vec<float> v);

template <>
inline Vec<float> widened<bfloat16>(Bits16 bits) {
  return reinterpret_cast<Vec<float>>(__builtin_convertvector(bits, Bits32) << 16);
}
template <>
inline Bits16 rounded<bfloat16>(Vec<float> v) {
  const Bits32 word = reinterpret_cast<Bits32>(v), upper = word >> 16;
  const Bits32 nearest = (word + 0x7fffu + (upper & 1u)) >> 16;
  return __builtin_convertvector(v != v ? upper | 0x40u : nearest, Bits16);
}

template <>
inline Vec<float> widened<float16>(Bits16 bits) {
  const Bits32 word = __builtin_convertvector(bits, Bits32), magnitude = word & 0x7fffu;
  const Bits32 infinite = reinterpret_cast<Bits32>(splat(kInfinity)) | magnitude << 13;  // or NaN
  const Bits32 normal = (magnitude << 13) + 0x38000000u;
  // Below 2^-14 a number is a multiple of 2^-24.
  const Vec<float> tiny =
      __builtin_convertvector(reinterpret_cast<Vec<std::int32_t>>(magnitude), Vec<float>) * 0x1p-24f;
  const Bits32 finite = magnitude < 0x400u ? reinterpret_cast<Bits32>(tiny) : normal;
  return reinterpret_cast<Vec<float>>((word & 0x8000u) << 16 | (magnitude < 0x7c00u ? finite : infinite));
}
template <>
inline Bits16 rounded<float16>(Vec<float> v) {
  const Bits32 word = reinterpret_cast<Bits32>(v), magnitude = word & 0x7fffffffu;
  const Bits32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const Bits32 tiny = reinterpret_cast<Bits32>(reinterpret_cast<Vec<float>>(magnitude) + 0.5f) - 0x3f000000u;
  const Bits32 finite = magnitude < 0x38800000u ? tiny : normal;
  const Bits32 infinite = v != v ? splat(0x7e00u) : splat(0x7c00u);  // 65520 and more round to infinity
  return __builtin_convertvector((word >> 16 & 0x8000u) | (magnitude < 0x477ff000u ? finite : infinite), Bits16);
}

/// v as memory of S has it.
template <class S>
inline Vec<Arithmetic<S>> stored(Vec<Arithmetic<S>> v) {
  if constexpr (kIs16Bit<S>)
    return widened<S>(rounded<S>(v));
  else
    return v;
}

template <class S>
inline Vec<Arithmetic<S>> load(const S* p) {
  if constexpr (kIs16Bit<S>) {
    Bits16 bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return widened<S>(bits);
  } else {
    Vec<S> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
}
template <class S>
inline void store(S* p, Vec<Arithmetic<S>> v) {
  if constexpr (kIs16Bit<S>) {
    const Bits16 bits = rounded<S>(v);
    __builtin_memcpy(static_cast<void*>(p), &bits, sizeof bits);
  } else {
    __builtin_memcpy(p, &v, sizeof v);
  }
}

/// All ones in the lanes below n.
template <class T>
inline auto lanes_below(Index n) {
  using Int = typename IntOf<T>::type;
  Vec<Int> lane;
  for (Index i = 0; i < kLanes<T>; ++i) lane[i] = static_cast<Int>(i);
  return lane < splat(static_cast<Int>(n));
}

/// The first n <= kLanes elements at p; the other lanes are 0. Nothing after them is read.
template <class S>
inline Vec<Arithmetic<S>> load_part(const S* p, Index n) {
  if constexpr (kIs16Bit<S>) {
    Bits16 bits{};
    for (Index i = 0; i < n; ++i) bits[i] = p[i].bits;
    return widened<S>(bits);
  } else {
    Vec<S> v{};
    for (Index i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
}
template <class S>
inline void store_part(S* p, Vec<Arithmetic<S>> v, Index n) {
  if constexpr (kIs16Bit<S>) {
    const Bits16 bits = rounded<S>(v);
    for (Index i = 0; i < n; ++i) p[i].bits = bits[i];
  } else {
    for (Index i = 0; i < n; ++i) p[i] = v[i];
  }
}
#if defined(__AVX2__) && !defined(__AVX512F__)
template <>
inline Vec<float> load_part(const float* p, Index n) {
  return _mm256_maskload_ps(p, reinterpret_cast<__m256i>(lanes_below<float>(n)));
}
template <>
inline Vec<double> load_part(const double* p, Index n) {
  return _mm256_maskload_pd(p, reinterpret_cast<__m256i>(lanes_below<double>(n)));
}
template <>
inline void store_part(float* p, Vec<float> v, Index n) {
  _mm256_maskstore_ps(p, reinterpret_cast<__m256i>(lanes_below<float>(n)), v);
}
template <>
inline void store_part(double* p, Vec<double> v, Index n) {
  _mm256_maskstore_pd(p, reinterpret_cast<__m256i>(lanes_below<double>(n)), v);
}
#elif defined(__AVX512F__)
template <>
inline Vec<float> load_part(const float* p, Index n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
template <>
inline Vec<double> load_part(const double* p, Index n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
template <>
inline void store_part(float* p, Vec<float> v, Index n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
template <>
inline void store_part(double* p, Vec<double> v, Index n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), v);
}
#endif

/// A position in arrays whose arithmetic type is T: kLanes elements from i, or the last few.
template <class T>
struct Full {
  Index i;
  template <class S>
  Vec<T> load(const S* p) const {
    return MEGALITH_ISA::load(p + i);
  }
  template <class S>
  void store(S* p, Vec<T> v) const {
    MEGALITH_ISA::store(p + i, v);
  }
  Vec<T> only(Vec<T> v, T) const { return v; }
};
template <class T>
struct Part {
  Index i, n;
  template <class S>
  Vec<T> load(const S* p) const {
    return load_part(p + i, n);
  }
  template <class S>
  void store(S* p, Vec<T> v) const {
    store_part(p + i, v, n);
  }
  /// v, and `rest` in the missing lanes.
  Vec<T> only(Vec<T> v, T rest) const { return lanes_below<T>(n) ? v : splat(rest); }
};

/// Calls body(position) for [0, n). `position` loads and stores only elements that exist.
template <class T, class Body>
inline void for_vectors(Index n, Body body) {
  Index i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) body(Full<T>{i});
  if (i < n) body(Part<T>{i, n - i});
}

/// Combines the vectors term(position) over [0, n), from `neutral`. Four chains hide the latency; their order is fixed.
template <class T, class Term, class Combine>
inline Vec<T> reduce_vectors(Index n, T neutral, Term term, Combine combine) {
  constexpr Index kStep = kLanes<T>;
  Vec<T> a = splat(neutral), b = a, c = a, d = a;
  Index i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    a = combine(a, term(Full<T>{i}));
    b = combine(b, term(Full<T>{i + kStep}));
    c = combine(c, term(Full<T>{i + 2 * kStep}));
    d = combine(d, term(Full<T>{i + 3 * kStep}));
  }
  for (; i + kStep <= n; i += kStep) a = combine(a, term(Full<T>{i}));
  if (i < n) {
    const Part<T> part{i, n - i};
    b = combine(b, part.only(term(part), neutral));
  }
  return combine(combine(a, b), combine(c, d));
}

template <class T, class Term>
inline Vec<T> sum_vectors(Index n, Term term) {
  return reduce_vectors<T>(n, T{0}, term, [](Vec<T> x, Vec<T> y) { return x + y; });
}

// Arrays of pairs x0 y0 x1 y1 ..., at a position of the pairs.

template <class T>
struct Pair {
  Vec<T> x, y;
};

template <class T>
inline Pair<T> apart(Vec<T> low, Vec<T> high) {
  using Int = typename IntOf<T>::type;
  Vec<Int> even, odd;
  for (Index i = 0; i < kLanes<T>; ++i) {
    even[i] = static_cast<Int>(2 * i);
    odd[i] = static_cast<Int>(2 * i + 1);
  }
  return {__builtin_shuffle(low, high, even), __builtin_shuffle(low, high, odd)};
}
/// The inverse: `x` is the lower half of the memory, `y` the upper.
template <class T>
inline Pair<T> together(Vec<T> x, Vec<T> y) {
  using Int = typename IntOf<T>::type;
  constexpr Index kHalf = kLanes<T> / 2;
  Vec<Int> low, high;
  for (Index i = 0; i < kLanes<T>; ++i) {
    low[i] = static_cast<Int>(i / 2 + i % 2 * kLanes<T>);
    high[i] = static_cast<Int>(kHalf + i / 2 + i % 2 * kLanes<T>);
  }
  return {__builtin_shuffle(x, y, low), __builtin_shuffle(x, y, high)};
}

template <class T, class S>
inline Pair<T> load_pairs(Full<T> at, const S* p) {
  return apart<T>(load(p + 2 * at.i), load(p + 2 * at.i + kLanes<T>));
}
template <class T, class S>
inline Pair<T> load_pairs(Part<T> at, const S* p) {
  const Index low = 2 * at.n < kLanes<T> ? 2 * at.n : kLanes<T>;
  return apart<T>(load_part(p + 2 * at.i, low), load_part(p + 2 * at.i + low, 2 * at.n - low));
}
template <class T, class S>
inline void store_pairs(Full<T> at, S* p, Vec<T> x, Vec<T> y) {
  const Pair<T> halves = together<T>(x, y);
  store(p + 2 * at.i, halves.x);
  store(p + 2 * at.i + kLanes<T>, halves.y);
}
template <class T, class S>
inline void store_pairs(Part<T> at, S* p, Vec<T> x, Vec<T> y) {
  const Pair<T> halves = together<T>(x, y);
  const Index low = 2 * at.n < kLanes<T> ? 2 * at.n : kLanes<T>;
  store_part(p + 2 * at.i, halves.x, low);
  store_part(p + 2 * at.i + low, halves.y, 2 * at.n - low);
}

/// The lanes' sum, halves first. The tree is the same each time.
template <class T>
inline T sum_lanes(Vec<T> v) {
  T lane[kLanes<T>];
  __builtin_memcpy(lane, &v, sizeof v);
  for (Index half = kLanes<T> / 2; half > 0; half /= 2) {
    for (Index i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}
template <class T>
inline T max_lanes(Vec<T> v) {
  T most = v[0];
  for (Index i = 1; i < kLanes<T>; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

/// a * b + c, rounded once where the instruction set has it. The compiler never contracts by itself.
template <class V>
inline V fma(V a, V b, V c) {
  return a * b + c;
}
#if defined(__AVX512F__)
template <>
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
template <>
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif defined(__AVX2__)
template <>
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
template <>
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#endif

}  // namespace megalith::ops::cpu::MEGALITH_ISA
