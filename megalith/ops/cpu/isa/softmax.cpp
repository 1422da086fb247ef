#include "megalith/ops/cpu/isa/exp.h"
#include "megalith/ops/cpu/isa/keep.h"
#include "megalith/ops/cpu/isa/table.h"

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

template <class T>
void exp_all(const T* x, T* y, Index n) {
  for_vectors<T>(n, [&](auto at) { at.store(y, exp(at.load(x))); });
}

template <class T>
Arithmetic<T> row_max(const T* x, Index n) {
  using A = Arithmetic<T>;
  return max_lanes<A>(reduce_vectors<A>(
      n, static_cast<A>(-kInfinity), [&](auto at) { return at.load(x); },
      [](Vec<A> a, Vec<A> b) { return a > b ? a : b; }));
}

/// y <- exp(scale * y - shift); returns the sum.
template <class T>
T exp_sum_scaled(T* y, Index n, T scale, T shift) {
  return sum_lanes<T>(sum_vectors<T>(n, [&](auto at) {
    const Vec<T> e = exp(fma(at.load(y), splat(scale), splat(-shift)));
    at.store(y, e);
    return e;
  }));
}

template <class T>
Arithmetic<T> exp_sum(T* z, Index n, Arithmetic<T> max) {
  using A = Arithmetic<T>;
  return sum_lanes<A>(sum_vectors<A>(n, [&](auto at) {
    const Vec<A> e = exp(at.load(z) - max);
    at.store(z, e);
    return e;
  }));
}

template <class T>
Arithmetic<T> sum_of_exp(const T* z, Index n, Arithmetic<T> max) {
  using A = Arithmetic<T>;
  return sum_lanes<A>(sum_vectors<A>(n, [&](auto at) { return exp(at.load(z) - max); }));
}

template <class T>
void exp_times(T* z, Index n, Arithmetic<T> max, Arithmetic<T> factor) {
  for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(z, exp(at.load(z) - max) * factor); });
}

template <class T>
T exp_one(T x) {
  return static_cast<T>(__builtin_exp(static_cast<double>(x)));
}

/// Keys of the tile that query row r may see.
template <class T>
Index visible(const AttentionTile<T>& tile, Index r) {
  if (tile.visible == VisibleKeys::all) return tile.columns;
  const Index n = tile.first_query + r - tile.first_key + 1;
  return n < tile.columns ? n : tile.columns;
}

/// The factors of the n visible elements of row r, n <= kMaxRowKeys.
template <class T>
const T* kept_of(KeptKeys<T>& keys, const AttentionTile<T>& tile, Index r, Index n) {
  return keys(tile.head_block, tile.seq_len, tile.first_token + tile.first_query + r, tile.first_token + tile.first_key,
              n);
}

template <class T>
void zero(T* x, Index n) {
  for_vectors<T>(n, [&](auto at) { at.store(x, Vec<T>{}); });
}

template <class T>
void attention_forward(const AttentionTile<T>& tile, T* max, T* sum, T* correction) {
  KeptKeys<T> kept_keys(tile.dropout == nullptr ? DropoutStream{} : *tile.dropout);
  for (Index r = 0; r < tile.rows; ++r) {
    T* row = tile.scores + r * tile.stride;
    const Index n = visible(tile, r);
    const T scaled_max = row_max(row, n) * tile.scale;
    const T most = scaled_max > max[r] ? scaled_max : max[r];
    correction[r] = max[r] == most ? T{1} : exp_one(max[r] - most);
    sum[r] = sum[r] * correction[r] + exp_sum_scaled(row, n, tile.scale, most);
    max[r] = most;
    if (tile.dropout != nullptr) {
      const T* const keep = kept_of(kept_keys, tile, r, n);
      for_vectors<T>(n, [&](auto at) { at.store(row, at.load(row) * at.load(keep)); });
    }
    zero(row + n, tile.columns - n);
  }
}

template <class T>
void attention_backward(const AttentionTile<T>& tile, const T* log_sum_exp, const T* delta) {
  KeptKeys<T> kept_keys(tile.dropout == nullptr ? DropoutStream{} : *tile.dropout);
  for (Index r = 0; r < tile.rows; ++r) {
    T *row = tile.scores + r * tile.stride, *dp = tile.dprobs + r * tile.stride;
    const Index n = visible(tile, r);
    const T lse = log_sum_exp[r], d = delta[r], scale = tile.scale;
    const auto probability = [&](auto at, const T* score) {
      return exp(fma(at.load(score), splat(scale), splat(-lse)));
    };
    if (tile.dropout == nullptr) {
      for_vectors<T>(n, [&](auto at) {
        const Vec<T> p = probability(at, row);
        at.store(row, p);
        at.store(dp, p * (at.load(dp) - d) * scale);
      });
    } else {
      const T* const keep = kept_of(kept_keys, tile, r, n);
      for_vectors<T>(n, [&](auto at) {
        const Vec<T> p = probability(at, row), k = at.load(keep);
        at.store(row, p * k);
        at.store(dp, p * (at.load(dp) * k - d) * scale);
      });
    }
    zero(row + n, tile.columns - n);
    zero(dp + n, tile.columns - n);
  }
}

}  // namespace

template <class T>
SoftmaxKernels<T> softmax_kernels() {
  return {.exp = exp_all<Arithmetic<T>>,
          .row_max = row_max<T>,
          .exp_sum = exp_sum<T>,
          .sum_of_exp = sum_of_exp<T>,
          .exp_times = exp_times<T>,
          .attention_forward = attention_forward<Arithmetic<T>>,
          .attention_backward = attention_backward<Arithmetic<T>>};
}
MEGALITH_FOR_STORED_TYPES(SoftmaxKernels, softmax_kernels);

}  // namespace megalith::ops::cpu::MEGALITH_ISA
