#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/rope_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// Throws InputError for a position outside the table.
Index position_of(const Rope& args, Index row) {
  if (!args.positions) return args.start_position + (args.first_row + row) % args.seq_len;
  const Index at = args.positions.data<std::int32_t>()[row];
  if (at >= 0 && at < args.table.dim(0)) return at;
  throw InputError(str("[rope] position = ", at, ": must be from 0 to ", args.table.dim(0) - 1));
}

/// Calls cycle(first) with the lowest number of each cycle of `to`.
template <class Places, class Cycle>
void for_cycles(Index count, const Places& to, const Cycle& cycle) {
  for (Index first = 0; first < count; ++first) {
    Index next = to(first);
    while (next > first) next = to(next);
    if (next == first) cycle(first);
  }
}

/// Moves head n of a row to place to(n), for all n (forward), or head to(n) to place n.
template <class T, class Places>
void move_heads(T* row, Index heads, Index head_dim, RopeDirection direction, const Places& to) {
  const auto swap = [&](Index a, Index b) {
    std::swap_ranges(row + a * head_dim, row + (a + 1) * head_dim, row + b * head_dim);
  };
  for_cycles(heads, to, [&](Index first) {
    if (direction == RopeDirection::forward) {
      for (Index at = to(first); at != first; at = to(at)) swap(first, at);
    } else {
      for (Index at = first; to(at) != first; at = to(at)) swap(at, to(at));
    }
  });
}

}  // namespace

void rope_table(const RopeFrequencies& frequencies, const Tensor& table) {
  dispatch_wide(table.dtype(), "rope_table", [&]<class T>() {
    const Index positions = table.dim(0), half = table.dim(2);
    T* data = table.data<T>();
    parallel_for(half, table.numel(), [&](Index i) {
      const double frequency = frequencies.of(i);
      for (Index p = 0; p < positions; ++p) {
        const double angle = static_cast<double>(p) * frequency;
        data[p * 2 * half + i] = static_cast<T>(std::cos(angle));
        data[p * 2 * half + half + i] = static_cast<T>(std::sin(angle));
      }
    });
  });
}

void rope(const Rope& args) {
  dispatch_float(args.qkv.dtype(), "rope", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index columns = args.qkv.dim(1), half = args.table.dim(2);
    const Index turned = args.num_heads / args.num_kv_heads + 1, group = (turned + 1) * 2 * half;
    const A direction = args.direction == RopeDirection::forward ? A{1} : A{-1};
    const auto rotate = kernels<T>().elementwise.rotate;
    const auto to_parts = [&](Index head) { return place_in_parts(head, turned - 1, args.num_kv_heads); };
    const Index heads = columns / (2 * half);
    const bool moves = args.attended == QkvOrder::parts, is_forward = args.direction == RopeDirection::forward;
    parallel_rows(args.qkv.dim(0), columns, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        const A* cosine = args.table.data<A>() + position_of(args, r) * 2 * half;
        T* const row = args.qkv.data<T>() + r * columns;
        if (moves && !is_forward) move_heads(row, heads, 2 * half, args.direction, to_parts);
        for (T* kv = row; kv < row + columns; kv += group) {
          for (Index head = 0; head < turned; ++head)
            rotate(kv + head * 2 * half, cosine, cosine + half, half, direction);
        }
        if (moves && is_forward) move_heads(row, heads, 2 * half, args.direction, to_parts);
      }
    });
  });
}

}  // namespace megalith::ops::cpu
