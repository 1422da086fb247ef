#pragma once
#include <cuda.h>

#include "megalith/ops/cuda/clamped_group.cuh"
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
inline constexpr int kTileSquares = 8;  // sums of squares of a tile: one for each 16 rows
static_assert(kTileSquares == kTiledSquares);
inline constexpr int kDepth = 64;  // indices of the sum per stage: 128 bytes, a row of the swizzle

/// The operands and results of the GEMMs, as the maps of the bulk tensor copies. All have three dimensions (the last
/// one that of weights, or 1), but b of up_gated has five.
struct GroupedArgs {
  CUtensorMap a, b, out;             // out: y, h, dx, dz or dw
  CUtensorMap more;                  // up: z. down: ph
  CUtensorMap z;                     // down: read
  const std::int32_t *begin, *rows;  // [groups], or null: one group of all rows
  int all_rows;
  std::uint32_t* items;  // how many items were given out; 0 before and after
  int first_group, groups;
  int result_rows;  // weight_grad: of each group
  int columns;      // of the result
  int depth;        // but weight_grad
  bool adds;        // weight_grad_f32
  double* squares;  // weight_grad_f32: [all groups, tiles, kTileSquares], or null
  bool has_more;    // whether `more` is written
  const float* p;   // down: of all rows, or null
  float* parts;     // down: [all rows, tiles' columns], or null
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

/// The work of a cluster in items, which are two tiles each. Tiles lie below each other, in bands, whose operands stay
/// in the L2. The tiles of a last odd row of tiles lie side by side. The items of a group follow each other. For
/// weight_grad, whose items are as large as their group, larger groups come first, by powers of two: the last items are
/// then small, so all SMs end together. All lanes of a warp call it together.
template <Kind kKind>
class Walk {
 public:
  __device__ Walk(const GroupedArgs& args, int rank, int lane) : args_(args), rank_(rank), lane_(lane) {
    int items = 0, largest = 0;
    for (int group = lane; group < args.groups; group += kWarp) {
      const int rows = group_at(group).rows;
      items += items_of(rows);
      largest = max(largest, size_class(rows));
    }
    count_ = __reduce_add_sync(0xffffffffu, items);
    class_ = __reduce_max_sync(0xffffffffu, largest);
    load();
  }
  __device__ int count() const { return count_; }

  /// The tile of item `item` < count(). Items must be asked for in ascending order.
  __device__ Tile find(int item) {
    while (item >= window_end_) {
      window_ += kWarp;
      if (window_ >= args_.groups) {
        window_ = 0;
        --class_;
      }
      base_ = window_end_;
      load();
    }
    const int source = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, item < end_))) - 1;
    const int before = __shfl_sync(0xffffffffu, end_, max(source - 1, 0));
    const int begin = __shfl_sync(0xffffffffu, begin_, source), rows = __shfl_sync(0xffffffffu, rows_, source);
    Tile tile;
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
    return tile;
  }

 private:
  static constexpr int kNowhere = 1 << 30;
  static constexpr int kBand = 8;  // in pairs of tiles

  __device__ ClampedGroup group_at(int group) const {
    return clamped_group(args_.begin, args_.rows, group, args_.all_rows);
  }
  /// A group's class: the larger the group, the greater.
  static __device__ int size_class(int rows) { return is_weight_grad(kKind) ? kWarp - __clz(rows) : 0; }
  __device__ int tile_rows(int rows) const {
    return ((is_weight_grad(kKind) ? args_.result_rows : rows) + kTileRows - 1) / kTileRows;
  }
  __device__ int tile_columns() const { return (args_.columns + kTileColumns - 1) / kTileColumns; }

  __device__ int items_of(int rows) const {
    if (rows == 0 && (!is_weight_grad(kKind) || args_.adds)) return 0;
    const int height = tile_rows(rows), width = tile_columns();
    return height / 2 * width + height % 2 * ((width + 1) / 2);
  }

  /// Reads the groups from window_ on, one per lane. Those of another class have no items.
  __device__ void load() {
    const int group = window_ + lane_;
    const bool is_there = group < args_.groups;
    const ClampedGroup of_lane = is_there ? group_at(group) : ClampedGroup{};
    rows_ = of_lane.rows;
    begin_ = of_lane.begin;
    end_ = is_there && size_class(rows_) == class_ ? items_of(rows_) : 0;
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
  int count_, class_;                           // of all items; the class whose turn it is
  int window_ = 0, base_ = 0, window_end_ = 0;  // the first group of the lanes', the items before it and up to its end
  int begin_ = 0, rows_ = 0, end_ = 0;          // of the lane's group; the items up to its end
};

}  // namespace megalith::ops::cuda::grouped_tiles
