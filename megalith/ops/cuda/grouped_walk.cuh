#pragma once
#include <cuda.h>

#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/cuda/grouped_product.h"

// Which tile of the grouped GEMMs a thread block computes next (grouped_tiles.cuh).

namespace megalith::ops::cuda::grouped_tiles {

/// The products, by what becomes of their sums. up: of the rows' operand and a weight [columns, depth]; input_grad and
/// down: of a weight [depth, columns]; weight_grad: of two operands of rows, f32: with a result of f32.
enum class Kind { forward, up_gated, up_gelu, input_grad, down_gated, down_gelu, weight_grad, weight_grad_f32 };

__host__ __device__ constexpr bool is_forward(Kind kind) {
  return kind == Kind::forward || kind == Kind::up_gated || kind == Kind::up_gelu;
}
__host__ __device__ constexpr bool is_down(Kind kind) { return kind == Kind::down_gated || kind == Kind::down_gelu; }
__host__ __device__ constexpr bool is_weight_grad(Kind kind) {
  return kind == Kind::weight_grad || kind == Kind::weight_grad_f32;
}

/// Blocks of a cluster.
inline constexpr int kClusterBlocks = 2;

inline constexpr int kTileRows = 128, kTileColumns = 256;
static_assert(kTileRows == kGroupedTileRows);
inline constexpr int kDepth = 64;  // indices of the sum per stage: 128 bytes, a row of the swizzle

/// The operands and results of the GEMMs, as the maps of the bulk tensor copies. All have three dimensions (the last
/// one that of weights, or 1), but b of up_gated has five.
struct GroupedArgs {
  CUtensorMap a, b, out;             // out: y, h, dx, dz or dw
  CUtensorMap more;                  // up: z. down: ph
  CUtensorMap z_tile;                // down: z in boxes for the L2
  const std::int32_t *begin, *rows;  // [groups]
  int first_group, groups;
  int result_rows;  // weight_grad: of each group
  int columns;      // of the result
  int depth;        // but weight_grad
  bool adds;        // weight_grad_f32
  bool has_more;    // whether `more` is written
  const void* z;    // down: [all_rows, z_columns]
  const float* p;   // down: [all_rows], or null
  float* parts;     // down: [all_rows, tiles' columns], or null
  int z_columns;
};

/// A tile. What is not said of weight_grad is said of the others.
struct Tile {
  int group = -1;    // -1: no tile is left
  int row, column;   // the first of the result; of the group's matrix for weight_grad
  int first = 0;     // weight_grad: the group's first row, where the sum begins
  int end = 0;       // the row after the group's last
  int steps = 0;     // stages, 1 at least
  bool lies_beside;  // whether the cluster's tiles have the same rows, and not the same columns
};

/// The work of a cluster in items, which are two tiles each. The items of a group follow those of the group before.
/// Tiles lie below each other, in bands, whose operands stay in the L2. The tiles of a last odd row of tiles lie side
/// by side. All lanes of a warp call it together.
template <Kind kKind>
class Walk {
 public:
  __device__ Walk(const GroupedArgs& args, int rank, int lane) : args_(args), rank_(rank), lane_(lane) { load(); }

  /// Items must be asked for in ascending order. False: there are no more.
  __device__ bool find(int item, Tile& tile) {
    while (item >= window_end_) {
      if (window_ + kWarp >= args_.groups) return false;
      window_ += kWarp;
      base_ = window_end_;
      load();
    }
    const int source = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, item < end_))) - 1;
    const int before = __shfl_sync(0xffffffffu, end_, max(source - 1, 0));
    const int begin = __shfl_sync(0xffffffffu, begin_, source), rows = __shfl_sync(0xffffffffu, rows_, source);
    tile.group = args_.first_group + window_ + source;
    tile.first = begin;
    tile.end = begin + rows;
    tile.steps = ((is_weight_grad(kKind) ? rows : args_.depth) + kDepth - 1) / kDepth;
    if (tile.steps == 0) {  // copies from outside the operands bring zeros
      tile.first = kNowhere;
      tile.steps = 1;
    }
    place(item - (source > 0 ? before : base_), rows, tile);
    if (!is_weight_grad(kKind)) tile.row += begin;
    return true;
  }

 private:
  static constexpr int kNowhere = 1 << 30;
  static constexpr int kBand = 8;  // in pairs of tiles

  __device__ int tile_rows(int rows) const {
    return ((is_weight_grad(kKind) ? args_.result_rows : rows) + kTileRows - 1) / kTileRows;
  }
  __device__ int tile_columns() const { return (args_.columns + kTileColumns - 1) / kTileColumns; }

  /// Reads the groups from window_ on, one per lane.
  __device__ void load() {
    const int group = window_ + lane_;
    rows_ = group < args_.groups ? __ldg(args_.rows + group) : 0;
    begin_ = group < args_.groups ? __ldg(args_.begin + group) : 0;
    const bool has_work = group < args_.groups && (rows_ > 0 || (is_weight_grad(kKind) && !args_.adds));
    const int height = tile_rows(rows_), width = tile_columns();
    end_ = has_work ? height / 2 * width + height % 2 * ((width + 1) / 2) : 0;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, end_, distance);
      if (lane_ >= distance) end_ += before;
    }
    end_ += base_;
    window_end_ = __shfl_sync(0xffffffffu, end_, kWarp - 1);
  }

  /// Item `item` of a group of so many rows.
  __device__ void place(int item, int rows, Tile& tile) const {
    const int pairs = tile_rows(rows) / 2, width = tile_columns();
    tile.lies_beside = item >= pairs * width;
    if (tile.lies_beside) {
      tile.row = 2 * pairs * kTileRows;
      tile.column = (2 * (item - pairs * width) + rank_) * kTileColumns;
      return;
    }
    const int band = item / (kBand * width), within = item % (kBand * width), height = min(kBand, pairs - band * kBand);
    tile.row = (2 * (band * kBand + within % height) + rank_) * kTileRows;
    tile.column = within / height * kTileColumns;
  }

  const GroupedArgs& args_;
  int rank_, lane_;
  int window_ = 0, base_ = 0, window_end_ = 0;  // the first group of the lanes', the items before it and up to its end
  int begin_ = 0, rows_ = 0, end_ = 0;          // of the lane's group; the items up to its end
};

}  // namespace megalith::ops::cuda::grouped_tiles
