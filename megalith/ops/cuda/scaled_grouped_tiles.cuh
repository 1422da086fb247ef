#pragma once
#include <cstddef>

#include "megalith/ops/cuda/grouped_ends.cuh"
#include "megalith/ops/cuda/hopper.cuh"

// Grouped GEMMs of E4M3 operands with block scales. A thread block stays on its SM and computes tiles of 128 x 128. One
// warp finds tiles and copies operands and scales, a block of 128 of the sum's index per stage. Two warp groups
// ("consumers") have 64 rows of a tile each. A consumer makes the product of a stage with the tensor cores, and adds
// it, times both scales, to its sums in f32. Meanwhile the other has the tensor cores.

namespace megalith::ops::cuda::scaled_tiles {

using grouped_tiles::Chunks;
using grouped_tiles::ChunkWriter;
using hopper::Barrier;
using hopper::RingPlace;

inline constexpr int kTile = 128;  // rows and columns of a tile, and indices of the sum of a stage
inline constexpr int kStages = 5, kTileSlots = 2;
inline constexpr int kConsumers = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
inline constexpr int kBlockThreads = (kConsumers + 1) * kGroupThreads;
inline constexpr int kCopyRegisters = 40, kConsumerRegisters = 232;  // as in grouped_tiles.cuh
inline constexpr int kBand = 16;                                     // rows of tiles whose operands stay in the L2

enum class Kind { rows, rows_turned, weight_grad };

struct ScaledArgs {
  CUtensorMap a, b, out;
  const float *a_scales, *b_scales;
  Index a_stride, b_stride;          // between the scales of blocks (vectors), or of rows of squares
  const std::int32_t *begin, *rows;  // [groups]
  int groups;
  int result_rows;  // weight_grad: of each group
  int columns;      // of the result; of each group for weight_grad
  int depth;        // but weight_grad
  bool adds;        // weight_grad
};

/// Rows of operands, and blocks of the sum's index where the sum begins.
struct ScaledTile {
  int group = -1;              // -1: no tile is left
  int row = 0, column = 0;     // of the result; of the group's matrix for weight_grad
  int a_row = 0, a_block = 0;  // of the first stage
  int b_row = 0, b_block = 0;
  int steps = 0;  // stages; 0 for weight_grad of an empty group, whose result is 0
};

struct Stage {
  std::byte a[kTile * kTile], b[kTile * kTile];  // rows of 128 codes
  float a_scales[kTile], b_scales[kTile];        // of rows; b_scales: weight_grad
};

struct alignas(1024) SharedMemory {
  Stage stages[kStages];
  Chunks chunks[kConsumers * kGroupWarps];
  ScaledTile tiles[kTileSlots];
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
};
static_assert(sizeof(Stage) % 1024 == 0 && sizeof(SharedMemory) <= 226 * 1024);

/// The tiles of a block, every gridDim.x-th of all. The tiles of a group follow each other, in bands of kBand rows.
template <Kind kKind>
class ScaledWalk {
 public:
  __device__ explicit ScaledWalk(const ScaledArgs& args) : args_(args), item_(static_cast<int>(blockIdx.x)) { load(); }

  __device__ ScaledTile next() {
    while (group_ < args_.groups && item_ >= before_ + items_) {
      before_ += items_;
      ++group_;
      load();
    }
    ScaledTile tile;
    if (group_ >= args_.groups) return tile;
    const int item = item_ - before_, width = args_.columns / kTile, band = item / (kBand * width),
              height = min(kBand, height_ - band * kBand), within = item % (kBand * width);
    item_ += static_cast<int>(gridDim.x);
    tile.group = group_;
    tile.row = (band * kBand + within % height) * kTile;
    tile.column = within / height * kTile;
    if constexpr (kKind == Kind::weight_grad) {
      tile.a_row = tile.row;
      tile.b_row = tile.column;
      tile.a_block = tile.b_block = begin_ / kTile;
      tile.steps = (rows_ + kTile - 1) / kTile;
    } else {
      tile.row += begin_;
      tile.a_row = tile.row;
      tile.b_row = kKind == Kind::rows ? group_ * args_.columns + tile.column : tile.column;
      tile.b_block = kKind == Kind::rows ? 0 : group_ * (args_.depth / kTile);
      tile.steps = args_.depth / kTile;
    }
    return tile;
  }

 private:
  __device__ void load() {
    if (group_ >= args_.groups) return;
    begin_ = __ldg(args_.begin + group_);
    rows_ = __ldg(args_.rows + group_);
    height_ = ((kKind == Kind::weight_grad ? args_.result_rows : rows_) + kTile - 1) / kTile;
    if (kKind == Kind::weight_grad && rows_ == 0 && args_.adds) height_ = 0;
    items_ = height_ * (args_.columns / kTile);
  }

  const ScaledArgs& args_;
  int item_, group_ = 0, before_ = 0;                  // tiles of the groups before
  int begin_ = 0, rows_ = 0, height_ = 0, items_ = 0;  // of the group; its rows of tiles and its tiles
};

/// Run by one thread.
template <Kind kKind>
__device__ void copy_operands(const ScaledArgs& args, SharedMemory& shared) {
  constexpr unsigned kScaleBytes = kTile * sizeof(float),
                     kBytes = 2 * kTile * kTile + (kKind == Kind::weight_grad ? 2 : 1) * kScaleBytes;
  ScaledWalk<kKind> walk(args);
  RingPlace<kStages> at;
  RingPlace<kTileSlots> slot;
  for (;; slot.next()) {
    const ScaledTile tile = walk.next();
    hopper::wait(shared.tile_empty[slot.place], slot.parity ^ 1u);
    shared.tiles[slot.place] = tile;
    hopper::arrive(shared.tile_full[slot.place]);
    if (tile.group < 0) return;
    for (int i = 0; i < tile.steps; ++i, at.next()) {
      Stage& stage = shared.stages[at.place];
      Barrier& full = shared.full[at.place];
      const int a_block = tile.a_block + i, b_block = tile.b_block + i;
      hopper::wait(shared.empty[at.place], at.parity ^ 1u);
      hopper::arrive_and_expect(full, kBytes);
      hopper::load_box(stage.a, args.a, full, a_block * kTile, tile.a_row);
      hopper::load_box(stage.b, args.b, full, b_block * kTile, tile.b_row);
      hopper::load_bytes(stage.a_scales, args.a_scales + a_block * args.a_stride + tile.a_row, kScaleBytes, full);
      if constexpr (kKind == Kind::weight_grad)
        hopper::load_bytes(stage.b_scales, args.b_scales + b_block * args.b_stride + tile.b_row, kScaleBytes, full);
    }
  }
}

__device__ inline ScaledTile uniform(ScaledTile tile) {
  for (int* x : {&tile.group, &tile.row, &tile.column, &tile.b_row, &tile.b_block, &tile.steps})
    *x = __shfl_sync(0xffffffffu, *x, 0);
  return tile;
}

using Sums = float[kTile / 2];  // of a lane: hopper::multiply() tells where they are

/// sums = the tile's 64 rows of the consumer.
template <Kind kKind>
__device__ __forceinline__ void multiply_tile(const ScaledArgs& args, SharedMemory& shared, RingPlace<kStages>& at,
                                              const ScaledTile& tile, int consumer, Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp % kGroupWarps;
  const int row = consumer * (kTile / kConsumers) + warp * kChunkRows + lane / 4;
  // The scale of a square is loaded a stage ahead.
  const float* const squares = args.b_scales + tile.b_row / kTile * args.b_stride + tile.b_block;
  float next_square = kKind == Kind::weight_grad || tile.steps == 0 ? 0.0f : __ldg(squares);
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int i = 0; i < tile.steps; ++i, at.next()) {
    const float square = next_square;
    if (kKind != Kind::weight_grad && i + 1 < tile.steps) next_square = __ldg(squares + i + 1);
    hopper::wait(shared.full[at.place], at.parity);
    const Stage& stage = shared.stages[at.place];
    using Operand = hopper::Operand<hopper::Major::sum>;
    const std::uint64_t a = Operand::descriptor(stage.a + consumer * (kTile / kConsumers) * kTile),
                        b = Operand::descriptor(stage.b);
    float products[kTile / 2];
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kTile / 32; ++step)
      hopper::multiply_e4m3(products, a + step * Operand::kStep, b + step * Operand::kStep, step > 0);
    hopper::commit_products();
    const float upper = stage.a_scales[row], lower = stage.a_scales[row + 8];
    hopper::wait_for_products<0>();
    hopper::hold(products);
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      const float2 columns = kKind == Kind::weight_grad
                                 ? *reinterpret_cast<const float2*>(stage.b_scales + 8 * t + 2 * (lane % 4))
                                 : float2{square, square};
      float *const sum = sums + 4 * t, *const product = products + 4 * t;
      sum[0] = fmaf(upper * columns.x, product[0], sum[0]);
      sum[1] = fmaf(upper * columns.y, product[1], sum[1]);
      sum[2] = fmaf(lower * columns.x, product[2], sum[2]);
      sum[3] = fmaf(lower * columns.y, product[3], sum[3]);
    }
    __syncwarp();
    if (lane == 0) hopper::arrive(shared.empty[at.place]);
  }
}

/// Stores a warp's 16 rows of a tile, or adds them, in chunks of 128 bytes of a row.
template <class T, Kind kKind>
__device__ __forceinline__ void store_tile(const ScaledArgs& args, Chunks& chunks, const ScaledTile& tile, int row,
                                           const Sums& sums, int lane) {
  constexpr int kSide = kChunkRowBytes / static_cast<int>(sizeof(T)), kBlocks = kSide / 8;
  const int group = kKind == Kind::weight_grad ? tile.group : 0;
  ChunkWriter writer(chunks);
#pragma unroll
  for (int side = 0; side < kTile / kSide; ++side) {
    const float* const first = sums + 4 * kBlocks * side;
    if constexpr (sizeof(T) == 4) {
      uint2 upper[kBlocks], lower[kBlocks];
#pragma unroll
      for (int t = 0; t < kBlocks; ++t) {
        upper[t] = {__float_as_uint(first[4 * t]), __float_as_uint(first[4 * t + 1])};
        lower[t] = {__float_as_uint(first[4 * t + 2]), __float_as_uint(first[4 * t + 3])};
      }
      grouped_tiles::fill_by_eights(writer.next(), upper, lower, lane);
    } else {
      std::uint32_t upper[kBlocks], lower[kBlocks];
#pragma unroll
      for (int t = 0; t < kBlocks; ++t) {
        upper[t] = packed<T>(first[4 * t], first[4 * t + 1]);
        lower[t] = packed<T>(first[4 * t + 2], first[4 * t + 3]);
      }
      grouped_tiles::fill_by_pairs(writer.next(), upper, lower, lane);
    }
    writer.send([&](const std::byte* chunk) {
      const int column = tile.column + side * kSide;
      if (kKind == Kind::weight_grad && args.adds)
        hopper::add_box(args.out, chunk, column, row, group);
      else
        hopper::store_box(args.out, chunk, column, row, group);
    });
  }
}

template <class T, Kind kKind>
__device__ __forceinline__ void consume(const ScaledArgs& args, SharedMemory& shared, int consumer) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0) % kGroupWarps;
  Chunks& chunks = shared.chunks[consumer * kGroupWarps + warp];
  RingPlace<kStages> at;
  RingPlace<kTileSlots> slot;
  for (;; slot.next()) {
    hopper::wait(shared.tile_full[slot.place], slot.parity);
    const ScaledTile tile = uniform(shared.tiles[slot.place]);
    if (lane == 0) hopper::arrive(shared.tile_empty[slot.place]);
    if (tile.group < 0) break;
    Sums sums;
    multiply_tile<kKind>(args, shared, at, tile, consumer, sums);
    store_tile<T, kKind>(args, chunks, tile, tile.row + consumer * (kTile / kConsumers) + warp * kChunkRows, sums,
                         lane);
  }
  if (hopper::is_elected()) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
}

/// See the top. Reads a and b, a byte per element and 1/32 for scales, once for each band of tiles; writes the result.
template <class T, Kind kKind>
__global__ void __launch_bounds__(kBlockThreads, 1) scaled_grouped_kernel(const __grid_constant__ ScaledArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte scaled_grouped_shared[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(scaled_grouped_shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::init(shared.full[stage], 1);
      hopper::init(shared.empty[stage], kConsumers * kGroupWarps);
    }
    for (int slot = 0; slot < kTileSlots; ++slot) {
      hopper::init(shared.tile_full[slot], 1);
      hopper::init(shared.tile_empty[slot], kConsumers * kGroupWarps);
    }
    hopper::fence_init();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kGroupWarps) {
    hopper::shrink_registers<kCopyRegisters>();
    if (threadIdx.x == 0) {
      for (const CUtensorMap* map : {&args.a, &args.b, &args.out}) hopper::prefetch_map(*map);
      copy_operands<kKind>(args, shared);
    }
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    consume<T, kKind>(args, shared, warp / kGroupWarps - 1);
  }
#endif
}

}  // namespace megalith::ops::cuda::scaled_tiles
