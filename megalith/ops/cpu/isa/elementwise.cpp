#include "megalith/ops/cpu/isa/exp.h"
#include "megalith/ops/cpu/isa/keep.h"
#include "megalith/ops/cpu/isa/table.h"

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

constexpr double kGeluCubic = 0.044715;
constexpr double kTwoSqrtTwoOverPi = 1.5957691216057308;  // 2 sqrt(2 / pi)

template <class T>
void add(const T* a, const T* b, T* out, Index n) {
  for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(out, at.load(a) + at.load(b)); });
}

template <class From, class To>
void convert_all(const From* from, To* to, Index n) {
  for_vectors<Arithmetic<To>>(n, [&](auto at) { at.store(to, at.load(from)); });
}

template <class T>
void scale(T* x, Arithmetic<T> factor, Index n) {
  for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(x, at.load(x) * factor); });
}

/// (1 + tanh(u)) / 2 with u = sqrt(2/pi) (z + 0.044715 z^3), as 1 / (1 + e^-2u). It takes one exp, and has no
/// cancellation for z < 0.
template <class T>
Vec<T> gelu_gate(Vec<T> z) {
  const Vec<T> twice_u =
      z * (static_cast<T>(kTwoSqrtTwoOverPi) + static_cast<T>(kTwoSqrtTwoOverPi * kGeluCubic) * z * z);
  return T{1} / (T{1} + exp(-twice_u));
}

/// Phi(z) = erfc(-z / sqrt(2)) / 2. In f32 erfc(u), u >= 0, is t e^(p(t) - u^2), t = 1 / (1 + u / 2), with a relative
/// error of 1.2e-7 beside the rounding of the exponent; Phi(-z) = 1 - Phi(z). Source of the polynomial: Press et al.,
/// Numerical Recipes in C, 2nd edition, section 6.2 (erfcc).
inline Vec<float> normal_distribution(Vec<float> z) {
  const Vec<float> u = (z < 0.0f ? -z : z) * 0.707106781f, t = 1.0f / (1.0f + 0.5f * u);
  Vec<float> p = fma(splat(0.17087277f), t, splat(-0.82215223f));
  for (const float c :
       {1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
    p = fma(p, t, splat(c));
  const Vec<float> tail = 0.5f * t * exp(p - u * u);
  return z < 0.0f ? tail : 1.0f - tail;
}
inline Vec<double> normal_distribution(Vec<double> z) {
  for (Index i = 0; i < kLanes<double>; ++i) z[i] = 0.5 * __builtin_erfc(-z[i] * 0.7071067811865476);
  return z;
}

/// What z is multiplied by.
struct TanhGate {
  template <class A>
  static Vec<A> of(Vec<A> z) {
    return gelu_gate<A>(z);
  }
};
struct ErfGate {
  template <class A>
  static Vec<A> of(Vec<A> z) {
    return normal_distribution(z);
  }
};

template <class Gate, class T>
void bias_gelu_by(T* x, const T* bias, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> z = at.load(x) + at.load(bias);
    at.store(x, z);
    at.store(y, z * Gate::template of<A>(z));
  });
}

template <class Gate, class T>
void gelu_by(const T* z, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> x = at.load(z);
    at.store(y, x * Gate::template of<A>(x));
  });
}

/// gelu' = Phi(z) + z phi(z), phi the density of a normal number.
template <class T>
void gelu_erf_backward(const T* z, const T* dy, T* dz, Index n) {
  using A = Arithmetic<T>;
  constexpr double kRootOfTwoPi = 2.5066282746310002;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> x = at.load(z), density = exp(x * x * static_cast<A>(-0.5)) * static_cast<A>(1 / kRootOfTwoPi);
    // As above: no 0 * inf.
    const Vec<A> slope = normal_distribution(x) + (density == A{0} ? splat(A{0}) : x * density);
    at.store(dz, at.load(dy) * slope);
  });
}

/// gelu' = g + z g (1 - g) 2u', g the gate.
template <class T>
void gelu_backward(const T* z, const T* dy, T* dz, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> x = at.load(z), g = gelu_gate<A>(x);
    const Vec<A> twice_slope =
        static_cast<A>(kTwoSqrtTwoOverPi) + static_cast<A>(3 * kTwoSqrtTwoOverPi * kGeluCubic) * x * x;
    // Far from 0 the gate is exactly 0 or 1 and the slope may be infinite. 0 * inf must not make a NaN there.
    const Vec<A> bend = g * (A{1} - g);
    const Vec<A> slope = g + (bend == A{0} ? splat(A{0}) : x * bend * twice_slope);
    at.store(dz, at.load(dy) * slope);
  });
}

/// silu(gate) * up, silu(z) = z / (1 + e^-z).
template <class T>
void swiglu(const T* gate_up, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const auto [gate, up] = load_pairs<A>(at, gate_up);
    at.store(y, gate / (A{1} + exp(-gate)) * up);
  });
}

/// silu'(z) = s (1 + z (1 - s)), s = 1 / (1 + e^-z).
template <class T>
void swiglu_backward(const T* gate_up, const T* dy, T* dgate_up, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const auto [gate, up] = load_pairs<A>(at, gate_up);
    const Vec<A> d = at.load(dy), s = A{1} / (A{1} + exp(-gate));
    store_pairs<A>(at, dgate_up, d * up * (s * (A{1} + gate * (A{1} - s))), d * (gate * s));
  });
}

template <class T>
void rotate(T* x, const Arithmetic<T>* cosine, const Arithmetic<T>* sine, Index half, Arithmetic<T> direction) {
  using A = Arithmetic<T>;
  for_vectors<A>(half, [&](auto at) {
    const Vec<A> a = at.load(x), b = at.load(x + half), c = at.load(cosine), s = at.load(sine) * direction;
    at.store(x, a * c - b * s);
    at.store(x + half, b * c + a * s);
  });
}

template <class T>
void weighted_sum(const T* const* rows, const Arithmetic<T>* weights, Index count, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    Vec<A> sum{};
    for (Index k = 0; k < count; ++k) sum = fma(splat(weights[k]), at.load(rows[k]), sum);
    at.store(y, sum);
  });
}

template <class T>
void scaled(const T* x, Arithmetic<T> factor, T* out, Index n) {
  for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(out, at.load(x) * factor); });
}

template <class T>
void add_rows(const T* x, Index rows, Index columns, Arithmetic<T>* sums) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {  // four rows per pass: one read and write of the sums instead of four
    const T *a = x + r * columns, *b = a + columns, *c = b + columns, *d = c + columns;
    for_vectors<Arithmetic<T>>(columns, [&](auto at) {
      at.store(sums, at.load(sums) + ((at.load(a) + at.load(b)) + (at.load(c) + at.load(d))));
    });
  }
  for (; r < rows; ++r) {
    const T* row = x + r * columns;
    for_vectors<Arithmetic<T>>(columns, [&](auto at) { at.store(sums, at.load(sums) + at.load(row)); });
  }
}

/// body(begin, count, factors) for pieces of n elements.
template <class T, class Body>
void with_keep(const DropoutStream& stream, std::uint64_t element, Index n, Body body) {
  KeepFactors<Arithmetic<T>> keep(stream);
  for (Index begin = 0; begin < n; begin += kKeepPiece) {
    const Index count = n - begin < kKeepPiece ? n - begin : kKeepPiece;
    body(begin, count, keep(element + static_cast<std::uint64_t>(begin), count));
  }
}

template <class T>
void dropout(const T* x, T* out, Index n, const DropoutStream& stream, std::uint64_t element) {
  with_keep<T>(stream, element, n, [&](Index begin, Index count, const Arithmetic<T>* keep) {
    for_vectors<Arithmetic<T>>(count, [&](auto at) { at.store(out + begin, at.load(x + begin) * at.load(keep)); });
  });
}

template <class T>
void add_dropout(const T* a, const T* b, T* out, Index n, const DropoutStream* stream, std::uint64_t element) {
  if (stream == nullptr) return add(a, b, out, n);
  with_keep<T>(*stream, element, n, [&](Index begin, Index count, const Arithmetic<T>* keep) {
    for_vectors<Arithmetic<T>>(
        count, [&](auto at) { at.store(out + begin, (at.load(a + begin) + at.load(b + begin)) * at.load(keep)); });
  });
}

template <class T>
void bias_dropout_add(const T* x, const T* bias, const T* residual, T* out, Index n, const DropoutStream* stream,
                      std::uint64_t element) {
  if (stream == nullptr) {
    if (bias == nullptr) return add(x, residual, out, n);
    for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(out, at.load(residual) + (at.load(x) + at.load(bias))); });
    return;
  }
  with_keep<T>(*stream, element, n, [&](Index begin, Index count, const Arithmetic<T>* keep) {
    for_vectors<Arithmetic<T>>(count, [&](auto at) {
      Vec<Arithmetic<T>> y = at.load(x + begin);
      if (bias != nullptr) y += at.load(bias + begin);
      at.store(out + begin, at.load(residual + begin) + y * at.load(keep));
    });
  });
}

}  // namespace

template <class T>
ElementwiseKernels<T> elementwise_kernels() {
  return {.add = add<T>,
          .scale = scale<T>,
          .bias_gelu = bias_gelu_by<TanhGate, T>,
          .gelu = gelu_by<TanhGate, T>,
          .gelu_backward = gelu_backward<T>,
          .bias_gelu_erf = bias_gelu_by<ErfGate, T>,
          .gelu_erf = gelu_by<ErfGate, T>,
          .gelu_erf_backward = gelu_erf_backward<T>,
          .swiglu = swiglu<T>,
          .swiglu_backward = swiglu_backward<T>,
          .rotate = rotate<T>,
          .weighted_sum = weighted_sum<T>,
          .scaled = scaled<T>,
          .add_rows = add_rows<T>,
          .dropout = dropout<T>,
          .add_dropout = add_dropout<T>,
          .bias_dropout_add = bias_dropout_add<T>,
          .widen = convert_all<T, Arithmetic<T>>,
          .round = convert_all<Arithmetic<T>, T>};
}
MEGALITH_FOR_STORED_TYPES(ElementwiseKernels, elementwise_kernels);

}  // namespace megalith::ops::cpu::MEGALITH_ISA
