#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/attention_decode_kernels.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/qkv_layout.h"

namespace megalith::ops::cpu {
/// Where the rows and the cache of a call lie.
template <class Args>
struct CachePlaces {
  explicit CachePlaces(const Args& args)
      : heads{.rows = args.qkv.dim(0),
              .num_kv_heads = args.keys.dim(1),
              .q_per_kv = args.num_heads / args.keys.dim(1),
              .head_dim = args.keys.dim(3)},
        capacity(args.keys.dim(2)),
        tokens_of_sequence(heads.rows / std::max(args.keys.dim(0), Index{1})),
        positions(args.positions.template data<std::int32_t>()) {}

  /// Throws InputError for a position outside the cache.
  Index position(Index row) const {
    const Index at = positions[row];
    if (at >= 0 && at < capacity) return at;
    throw InputError(str("[cache] position = ", at, ": must be from 0 to ", capacity - 1));
  }
  /// Element of the first q of a group in qkv.
  Index group(Index row, Index kv_head) const { return row * heads.columns() + kv_head * heads.group_columns(); }
  /// Element of position 0 in the cache.
  Index cached(Index row, Index kv_head) const {
    return (row / tokens_of_sequence * heads.num_kv_heads + kv_head) * capacity * heads.head_dim;
  }

  QkvLayout heads;
  Index capacity, tokens_of_sequence;
  const std::int32_t* positions;
};

namespace {

constexpr Index kHeads = 8;              // q heads that read a block of keys while it is in the cache
constexpr Index kBlockElements = 16384;  // elements of a block of keys or values
constexpr Index kMaxKeys = 128;          // largest number of keys in a block

/// `count` numbers in the type of arithmetic: those of the tensor, or a widened copy in `space`.
template <class T>
const Arithmetic<T>* in_arithmetic(const T* x, Index count, Arithmetic<T>* space) {
  if constexpr (std::is_same_v<T, Arithmetic<T>>) {
    return x;
  } else {
    kernels<T>().elementwise.widen(x, space, count);
    return space;
  }
}

/// Memory of a task for 16-bit tensors; others need none.
template <class T>
struct WideSpace {
  static constexpr bool kNeeded = !std::is_same_v<T, Arithmetic<T>>;
  alignas(64) Arithmetic<T> block[kNeeded ? kBlockElements : 1];
  alignas(64) Arithmetic<T> q[kNeeded ? kHeads * kMaxDecodeHeadDim : 1];
};

/// Up to kHeads q heads of one group of one token: softmax over blocks of keys with a running maximum and sum.
template <class T>
void attend(const AttentionDecode& args, const CachePlaces<AttentionDecode>& at, Index row, Index kv_head, Index first,
            Index count) {
  using A = Arithmetic<T>;
  const Index dim = at.heads.head_dim, keys = at.position(row) + 1;
  const Index block = std::clamp(kBlockElements / dim, Index{1}, kMaxKeys);
  WideSpace<T> space;
  alignas(64) A scores[kHeads * kMaxKeys];
  alignas(64) A sums[kHeads * kMaxDecodeHeadDim];
  A max[kHeads], sum[kHeads] = {}, correction[kHeads];
  std::fill_n(max, kHeads, -std::numeric_limits<A>::infinity());
  const A* q = in_arithmetic(args.qkv.data<T>() + at.group(row, kv_head) + first * dim, count * dim, space.q);
  const T *k = args.keys.data<T>() + at.cached(row, kv_head), *v = args.values.data<T>() + at.cached(row, kv_head);
  const Kernels<A>& run = kernels<A>();
  for (Index key = 0; key < keys; key += block) {
    const Index some = std::min(block, keys - key);
    run.gemm.few_rows({.rows = count,
                       .columns = some,
                       .k = dim,
                       .x = q,
                       .w = in_arithmetic(k + key * dim, some * dim, space.block),
                       .c = scores,
                       .c_row = kMaxKeys});
    run.softmax.attention_forward({.scores = scores,
                                   .stride = kMaxKeys,
                                   .rows = count,
                                   .columns = some,
                                   .scale = static_cast<A>(1 / std::sqrt(static_cast<double>(dim))),
                                   .visible = VisibleKeys::all},
                                  max, sum, correction);
    const A* values = in_arithmetic(v + key * dim, some * dim, space.block);
    for (Index h = 0; h < count; ++h) {
      if (key > 0) run.elementwise.scale(sums + h * dim, correction[h], dim);
      run.gemm.weighted_row_sum(scores + h * kMaxKeys, values, dim, some, dim, sums + h * dim, key > 0 ? A{1} : A{0});
    }
  }
  T* out = args.out.data<T>() + (row * args.num_heads + kv_head * at.heads.q_per_kv + first) * dim;
  for (Index h = 0; h < count; ++h) run.elementwise.scale(sums + h * dim, A{1} / sum[h], dim);
  kernels<T>().elementwise.round(sums, out, count * dim);
}

}  // namespace

void cache_append(const CacheAppend& args) {
  dispatch_float(args.qkv.dtype(), "cache_append", [&]<class T>() {
    const CachePlaces at(args);
    const QkvLayout& heads = at.heads;
    const T* qkv = args.qkv.data<T>();
    parallel_rows(heads.rows, heads.columns(), [&](Index begin, Index count) {
      for (Index row = begin; row < begin + count; ++row) {
        const Index position = at.position(row);
        for (Index g = 0; g < heads.num_kv_heads; ++g) {
          const T* k = qkv + at.group(row, g) + heads.q_per_kv * heads.head_dim;
          const Index to = at.cached(row, g) + position * heads.head_dim;
          std::copy_n(k, heads.head_dim, args.keys.data<T>() + to);
          std::copy_n(k + heads.head_dim, heads.head_dim, args.values.data<T>() + to);
        }
      }
    });
  });
}

/// One task per (token, group, kHeads of its q heads).
void attention_decode(const AttentionDecode& args) {
  dispatch_float(args.qkv.dtype(), "attention_decode", [&]<class T>() {
    const CachePlaces at(args);
    const QkvLayout& heads = at.heads;
    const Index parts = ceil_div(heads.q_per_kv, kHeads), groups = heads.num_kv_heads * parts;
    Index visible = 0;
    for (Index row = 0; row < heads.rows; ++row) visible += at.position(row) + 1;
    parallel_for(heads.rows * groups, visible * groups * heads.head_dim, [&](Index i) {
      const Index first = i % parts * kHeads;
      attend<T>(args, at, i / groups, i % groups / parts, first, std::min(kHeads, heads.q_per_kv - first));
    });
  });
}

}  // namespace megalith::ops::cpu
