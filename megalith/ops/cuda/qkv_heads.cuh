#pragma once
#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/qkv_layout.h"

namespace megalith::ops::cuda {

/// A QkvLayout as kernels take it. The heads of a group are its q heads, its k, its v.
struct HeadLayout {
  explicit HeadLayout(const QkvLayout& layout)
      : rows(layout.rows),
        columns(layout.columns()),
        head_dim(static_cast<unsigned>(layout.head_dim)),
        of_group(static_cast<unsigned>(layout.q_per_kv + 2)),
        heads(static_cast<unsigned>(layout.num_kv_heads) * of_group),
        normed(static_cast<unsigned>(layout.normed())) {}
  Index rows, columns;
  unsigned head_dim, of_group, heads, normed;  // heads and normed count those of a row, with v and without
};

/// One head of a row.
struct QkvHead {
  unsigned number, group, place;  // number in the row; its group; place in that
  bool is_k, is_v;
  __device__ QkvHead(const HeadLayout& layout, unsigned of_row)
      : number(of_row),
        group(of_row / layout.of_group),
        place(of_row % layout.of_group),
        is_k(place == layout.of_group - 2),
        is_v(place == layout.of_group - 1) {}
  /// Its number among the heads without v.
  __device__ unsigned normed() const { return number - group; }
  /// The number of a q head or a k among its kind.
  __device__ unsigned of_kind(const HeadLayout& layout) const {
    return is_k ? group : group * (layout.of_group - 2) + place;
  }
};

}  // namespace megalith::ops::cuda
