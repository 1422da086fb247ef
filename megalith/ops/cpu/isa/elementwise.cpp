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

template <class T>
void bias_gelu(T* x, const T* bias, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> z = at.load(x) + at.load(bias);
    at.store(x, z);
    at.store(y, z * gelu_gate<A>(z));
  });
}

template <class T>
void gelu(const T* z, T* y, Index n) {
  using A = Arithmetic<T>;
  for_vectors<A>(n, [&](auto at) {
    const Vec<A> x = at.load(z);
    at.store(y, x * gelu_gate<A>(x));
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
          .bias_gelu = bias_gelu<T>,
          .gelu = gelu<T>,
          .gelu_backward = gelu_backward<T>,
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
