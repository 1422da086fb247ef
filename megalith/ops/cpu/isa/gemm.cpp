#include "megalith/ops/cpu/isa/table.h"
#include "megalith/ops/cpu/isa/vec.h"

// The GEMM follows Goto and van de Geijn 2008 ("Anatomy of high-performance matrix multiplication"). Blocks of a and b
// are copied into panels that the inner kernel reads with stride 1. The inner kernel holds a kTileRows x kTileColumns
// piece of c in registers. The panels live on the stack (400 KiB at most). So nothing is allocated, and they stay in
// the second-level cache.

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

constexpr Index kTileRows = 6;
constexpr Index kTileVectors = kVectorBytes == 64 ? 4 : 2;  // 24 of 32 registers, or 12 of 16
template <class T>
constexpr Index kTileColumns = kTileVectors* kLanes<T>;
constexpr Index kRows = 120;  // rows of a block of c
template <class T>
constexpr Index kColumns = 1024 / static_cast<Index>(sizeof(T));
constexpr Index kDepth = 192;

/// Panels of `width` lines of x: out[panel][l][line] = x(line, l) = x[line*line_stride + l*step]. Missing lines are 0.
template <class T, Index kWidth>
void pack(const T* x, Index line_stride, Index step, Index lines, Index depth, T* out) {
  for (Index first = 0; first < lines; first += kWidth, out += kWidth * depth) {
    const T* from = x + first * line_stride;
    const Index count = lines - first < kWidth ? lines - first : kWidth;
    if (count < kWidth) {
      for (Index l = 0; l < depth; ++l) {
        for (Index i = 0; i < kWidth; ++i) out[l * kWidth + i] = i < count ? from[i * line_stride + l * step] : T{0};
      }
    } else if (line_stride == 1) {
      for (Index l = 0; l < depth; ++l) __builtin_memcpy(out + l * kWidth, from + l * step, kWidth * sizeof(T));
    } else {
      for (Index l = 0; l < depth; ++l) {
        for (Index i = 0; i < kWidth; ++i) out[l * kWidth + i] = from[i * line_stride + l * step];
      }
    }
  }
}

/// c tile [rows, columns] = beta c + a panel x b panel.
template <class T>
void tile(Index depth, const T* a, const T* b, T* c, Index c_row, Index rows, Index columns, T beta) {
  Vec<T> sum[kTileRows][kTileVectors] = {};
  for (Index l = 0; l < depth; ++l, a += kTileRows, b += kTileColumns<T>) {
    Vec<T> line[kTileVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kTileVectors; ++v) line[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 6
    for (Index i = 0; i < kTileRows; ++i) {
      const Vec<T> factor = splat(a[i]);
#pragma GCC unroll 4
      for (Index v = 0; v < kTileVectors; ++v) sum[i][v] = fma(factor, line[v], sum[i][v]);
    }
  }
  if (rows == kTileRows && columns == kTileColumns<T>) {
#pragma GCC unroll 6
    for (Index i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
      for (Index v = 0; v < kTileVectors; ++v) {
        T* out = c + i * c_row + v * kLanes<T>;
        store(out, beta == T{0} ? sum[i][v] : load(out) + sum[i][v]);
      }
    }
    return;
  }
  alignas(64) T edge[kTileRows * kTileColumns<T>];
#pragma GCC unroll 6
  for (Index i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
    for (Index v = 0; v < kTileVectors; ++v) store(edge + i * kTileColumns<T> + v * kLanes<T>, sum[i][v]);
  }
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) {
      const T value = edge[i * kTileColumns<T> + j];
      c[i * c_row + j] = beta == T{0} ? value : c[i * c_row + j] + value;
    }
  }
}

Index least(Index a, Index b) { return a < b ? a : b; }

template <class T>
void product(const Product<T>& p) {
  alignas(64) T a_panels[kRows * kDepth];
  alignas(64) T b_panels[kColumns<T> * kDepth];
  for (Index j0 = 0; j0 < p.n; j0 += kColumns<T>) {
    const Index columns = least(kColumns<T>, p.n - j0);
    for (Index l0 = 0; l0 < p.k; l0 += kDepth) {
      const Index depth = least(kDepth, p.k - l0);
      const T beta = l0 == 0 ? p.beta : T{1};
      pack<T, kTileColumns<T>>(p.b + j0 * p.b_column + l0 * p.b_row, p.b_column, p.b_row, columns, depth, b_panels);
      for (Index i0 = 0; i0 < p.m; i0 += kRows) {
        const Index rows = least(kRows, p.m - i0);
        pack<T, kTileRows>(p.a + i0 * p.a_row + l0 * p.a_column, p.a_row, p.a_column, rows, depth, a_panels);
        for (Index j = 0; j < columns; j += kTileColumns<T>) {
          for (Index i = 0; i < rows; i += kTileRows) {
            tile(depth, a_panels + i * depth, b_panels + j * depth, p.c + (i0 + i) * p.c_row + j0 + j, p.c_row,
                 least(kTileRows, rows - i), least(kTileColumns<T>, columns - j), beta);
          }
        }
      }
    }
  }
}

template <class T>
Arithmetic<T> dot(const T* x, const T* y, Index n) {
  using A = Arithmetic<T>;
  return sum_lanes<A>(sum_vectors<A>(n, [&](auto at) { return at.load(x) * at.load(y); }));
}

template <class A, class T>
A widened_element(const T& x) {
  if constexpr (kIs16Bit<T>)
    return load_part(&x, 1)[0];
  else
    return x;
}

/// kVectors neighbouring vectors of the sums at once. Their chains of additions run in parallel.
template <Index kVectors, class T>
void weighted_vectors(const T* x, const T* matrix, Index stride, Index k, Arithmetic<T>* y, Arithmetic<T> beta) {
  using A = Arithmetic<T>;
  Vec<A> sum[kVectors];
#pragma GCC unroll 4
  for (Index v = 0; v < kVectors; ++v) sum[v] = beta == A{0} ? Vec<A>{} : load(y + v * kLanes<A>);
  for (Index l = 0; l < k; ++l) {
    const Vec<A> factor = splat(widened_element<A>(x[l]));
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) sum[v] += factor * load(matrix + l * stride + v * kLanes<A>);
  }
#pragma GCC unroll 4
  for (Index v = 0; v < kVectors; ++v) store(y + v * kLanes<A>, sum[v]);
}

template <class T>
void weighted_row_sum(const T* x, const T* matrix, Index stride, Index k, Index columns, Arithmetic<T>* y,
                      Arithmetic<T> beta) {
  using A = Arithmetic<T>;
  constexpr Index kVectors = 4;
  Index done = 0;
  for (; done + kVectors * kLanes<A> <= columns; done += kVectors * kLanes<A>)
    weighted_vectors<kVectors>(x, matrix + done, stride, k, y + done, beta);
  for_vectors<A>(columns - done, [&](auto at) {
    Vec<A> sum = beta == A{0} ? Vec<A>{} : at.load(y + done);
    for (Index l = 0; l < k; ++l) sum += widened_element<A>(x[l]) * at.load(matrix + l * stride + done);
    at.store(y + done, sum);
  });
}

/// Whether a tile prefetches the weights of the next columns, which then come from memory while this one computes. With
/// 8 rows of 50304 x 768 that takes 22 ms instead of 31 on two cores (docs/measurements/cpu.md).
enum class Prefetch { none, next_columns };

/// Every output is one chain of multiply-adds over k and one sum of lanes, whatever its neighbours are.
template <Index kRowsAtOnce, Index kColumnsAtOnce, Prefetch kPrefetch, class T>
void few_rows_tile(const FewRows<T>& p, Index row, Index column) {
  using A = Arithmetic<T>;
  const T *x = p.x + row * p.k, *w = p.w + column * p.k;
  Vec<A> sum[kRowsAtOnce][kColumnsAtOnce] = {};
  for_vectors<A>(p.k, [&](auto at) {
    Vec<A> line[kColumnsAtOnce];
#pragma GCC unroll 8
    for (Index j = 0; j < kColumnsAtOnce; ++j) {
      line[j] = at.load(w + j * p.k);
      if (kPrefetch == Prefetch::next_columns) __builtin_prefetch(w + (kColumnsAtOnce + j) * p.k + at.i, 0, 2);
    }
#pragma GCC unroll 8
    for (Index i = 0; i < kRowsAtOnce; ++i) {
      const Vec<A> factor = at.load(x + i * p.k);
#pragma GCC unroll 8
      for (Index j = 0; j < kColumnsAtOnce; ++j) sum[i][j] = fma(factor, line[j], sum[i][j]);
    }
  });
#pragma GCC unroll 8
  for (Index i = 0; i < kRowsAtOnce; ++i) {
#pragma GCC unroll 8
    for (Index j = 0; j < kColumnsAtOnce; ++j) {
      A* const c = p.c + (row + i) * p.c_row + column + j;
      const A total = sum_lanes<A>(sum[i][j]);
      *c = p.beta == A{0} ? total : *c + total;
    }
  }
}

/// All rows of kColumnsAtOnce columns. The first rows read the weights from memory, the others from the cache.
template <Index kColumnsAtOnce, class T>
void few_rows_strip(const FewRows<T>& p, Index column) {
  constexpr Prefetch kFirst = Prefetch::next_columns, kOthers = Prefetch::none;
  if (p.rows == 1) return few_rows_tile<1, kColumnsAtOnce, kFirst>(p, 0, column);
  if (p.rows < 4) {
    few_rows_tile<2, kColumnsAtOnce, kFirst>(p, 0, column);
    if (p.rows == 3) few_rows_tile<1, kColumnsAtOnce, kOthers>(p, 2, column);
    return;
  }
  few_rows_tile<4, kColumnsAtOnce, kFirst>(p, 0, column);
  Index row = 4;
  for (; row + 4 <= p.rows; row += 4) few_rows_tile<4, kColumnsAtOnce, kOthers>(p, row, column);
  if (row + 2 <= p.rows) {
    few_rows_tile<2, kColumnsAtOnce, kOthers>(p, row, column);
    row += 2;
  }
  if (row < p.rows) few_rows_tile<1, kColumnsAtOnce, kOthers>(p, row, column);
}

template <class T>
void few_rows(const FewRows<T>& p) {
  constexpr Index kStrip = kVectorBytes == 64 ? 4 : 2;  // 4 x 4 or 4 x 2 sums are held in registers
  Index column = 0;
  if (p.rows == 1) {
    for (; column + 8 <= p.columns; column += 8) few_rows_tile<1, 8, Prefetch::next_columns>(p, 0, column);
  }
  for (; column + kStrip <= p.columns; column += kStrip) few_rows_strip<kStrip>(p, column);
  for (; column < p.columns; ++column) few_rows_strip<1>(p, column);
}

}  // namespace

template <class T>
GemmKernels<T> gemm_kernels() {
  return {.product = product<Arithmetic<T>>,
          .dot = dot<T>,
          .weighted_row_sum = weighted_row_sum<T>,
          .few_rows = few_rows<T>};
}
MEGALITH_FOR_STORED_TYPES(GemmKernels, gemm_kernels);

}  // namespace megalith::ops::cpu::MEGALITH_ISA
