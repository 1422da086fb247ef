#pragma once
#include <cstddef>

#include "megalith/ops/cuda/chunks.cuh"
#include "megalith/ops/cuda/gelu.cuh"
#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/cuda/ptx.h"

// A thread block stays on its SM and computes tiles of kTileRows x kTileColumns. One warp copies operands. Two warp
// groups ("consumers") take tiles in turn. While one has the tensor cores, the other does GELU, rounds and stores. The
// sums of a tile fill a group's registers, so the other group goes on.

namespace megalith::ops::cuda::gelu_tiles {

using hopper::Barrier;
using hopper::Major;

enum class Pass { forward, backward };

/// Blocks of a cluster, 1 or 2: neighbours whose tiles lie below each other. Each copies a part of the columns' operand
/// for all.
inline constexpr int kClusterBlocks = 2;

inline constexpr int kTileRows = 128, kTileColumns = 128;
static_assert(kTileRows == kGeluProductRows);
inline constexpr int kDepth = 64;  // indices of the sum per stage: 128 bytes, a row of the swizzle
inline constexpr int kSide = 64, kSides = kTileColumns / kSide;  // a tile's columns in rows of 128 bytes
inline constexpr int kHalf = 64, kHalves = kTileRows / kHalf;    // a tile's rows in products of 64
inline constexpr int kBoxBytes = 64 * kDepth * 2;                // 8192, of operands: 64 rows of 128 bytes

inline constexpr int kConsumers = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
inline constexpr int kBlockThreads = (kConsumers + 1) * kGroupThreads;
/// Registers of a thread, in the group that copies and in the others. Each has 168 at the start, 64512 of 65536 in all.
inline constexpr int kCopyRegisters = 40;
inline constexpr int kConsumerRegisters = 232;
static_assert(kCopyRegisters + kConsumers * kConsumerRegisters == (kConsumers + 1) * 168);

/// A warp's own part of a tile is 2 x 16 rows. It passes through shared memory in chunks of 16 x 64, which no other
/// warp touches.
static_assert(kSide * 2 == kChunkRowBytes);
/// The chunks of a warp. Forward: z, y, z, y, for two chunks in turn. Backward: z of all chunks of a tile, replaced by
/// dz.
template <Pass kPass>
inline constexpr int kChunks = kPass == Pass::forward ? 4 : (kSides* kHalves);

// Named barriers.
inline constexpr int kTurnBarrier = 1;  // and the next: a consumer's turn at the tensor cores
inline constexpr int kSumsBarrier = 3;  // and the next: among the threads of a consumer

/// a and b of the GEMM, and the destination of its result, as the maps of the bulk tensor copies.
struct GeluProductArgs {
  CUtensorMap a;     // [rows, depth], boxes of 128 x 64: x or dy
  CUtensorMap b;     // w; forward [columns, depth], kTileColumns / 2 x 64; backward [depth, columns], 32 x 64
  CUtensorMap z;     // [rows, columns], boxes of 16 x 64; written forward, read backward
  CUtensorMap out;   // likewise; written: y or dz
  const void* bias;  // [columns]; forward
  float* parts;      // [gelu_product_parts(rows), columns]; backward
  int rows, columns, depth;
};

struct Stage {
  std::byte a[kTileRows * kDepth * 2];     // [128, 64], sum's index along the rows
  std::byte b[kTileColumns * kDepth * 2];  // forward [columns, 64], backward boxes [64, 64 columns]
};

/// As many stages as fit: 5 of 32 KiB for 128 columns. A KiB of a block's maximum stays free. A block without shared
/// memory, such as one that waits for another GPU in a graph, takes that much. Otherwise it would keep this kernel's
/// block from its SM.
template <Pass kPass>
struct alignas(1024) SharedMemory {
  static constexpr int kBytes = 226 * 1024, kSmallBytes = 2048;  // in all; for what follows the chunks
  static constexpr int kBytesOfChunks = kConsumers * kGroupWarps * kChunks<kPass> * kChunkBytes;
  static constexpr int kStages = (kBytes - kSmallBytes - kBytesOfChunks) / static_cast<int>(sizeof(Stage));
  Stage stages[kStages];
  std::byte chunks[kConsumers * kGroupWarps][kChunks<kPass>][kChunkBytes];
  float column_sums[kConsumers][kGroupWarps - 1][kSide];  // those of all warps but the first
  Barrier full[kStages], empty[kStages];
  Barrier z_full[kConsumers * kGroupWarps];
};
static_assert(sizeof(SharedMemory<Pass::forward>) <= SharedMemory<Pass::forward>::kBytes);
static_assert(sizeof(SharedMemory<Pass::backward>) <= SharedMemory<Pass::backward>::kBytes);

/// The first row and column of a tile.
struct Tile {
  int row, column;
};

/// The tiles of a block, in order. Their number is the same for all blocks of a cluster, so some tiles may lie below
/// the last row. Blocks that run side by side work on bands of 16 tiles' rows, whose operands stay in the L2.
template <int kCluster>
struct TileWalk {
  static constexpr int kBand = 16 / kCluster;  // in rows of clusters

  __device__ explicit TileWalk(const GeluProductArgs& args)
      : cluster_rows((args.rows + kCluster * kTileRows - 1) / (kCluster * kTileRows)),
        tile_columns((args.columns + kTileColumns - 1) / kTileColumns),
        first(static_cast<int>(blockIdx.x) / kCluster),
        step(static_cast<int>(gridDim.x) / kCluster),
        rank(static_cast<int>(blockIdx.x) % kCluster) {
    count = (cluster_rows * tile_columns - first + step - 1) / step;
  }
  __device__ Tile tile(int i) const {
    const int place = first + i * step, band = place / (kBand * tile_columns), within = place % (kBand * tile_columns);
    const int band_rows = min(kBand, cluster_rows - band * kBand);
    const int cluster_row = band * kBand + within % band_rows;
    return {(cluster_row * kCluster + rank) * kTileRows, within / band_rows * kTileColumns};
  }

  int cluster_rows, tile_columns, first, step, rank, count;
};

/// Run by one thread. It copies the operands of all tiles, stage by stage, as the consumers free them. The columns'
/// operand comes in two halves: forward of the columns, backward of the sum's indices. Each of two blocks of a cluster
/// copies one for both.
template <Pass kPass, int kCluster>
__device__ void copy_operands(const GeluProductArgs& args, SharedMemory<kPass>& shared) {
  const TileWalk<kCluster> walk(args);
  hopper::RingPlace<SharedMemory<kPass>::kStages> at;
  for (int i = 0; i < walk.count; ++i) {
    const Tile tile = walk.tile(i);
    for (int depth = 0; depth < args.depth; depth += kDepth) {
      hopper::wait(shared.empty[at.place], at.parity ^ 1u);
      Barrier& full = shared.full[at.place];
      hopper::arrive_and_expect(full, sizeof(Stage));
      hopper::load_box(shared.stages[at.place].a, args.a, full, depth, tile.row);
      const auto copy_half = [&](int half) {
        const auto copy_box = [&](int offset, int x, int y) {
          std::byte* const to = shared.stages[at.place].b + offset;
          if constexpr (kCluster == 1) {
            hopper::load_box(to, args.b, full, x, y);
          } else {
            hopper::load_box_to((1u << kCluster) - 1, to, args.b, full, x, y);
          }
        };
        if constexpr (kPass == Pass::forward) {
          copy_box(half * static_cast<int>(sizeof(Stage::b)) / 2, depth, tile.column + half * (kTileColumns / 2));
        } else {
          for (int side = 0; side < kSides; ++side)
            copy_box(side * kBoxBytes + half * (kBoxBytes / 2), tile.column + side * kSide,
                     depth + half * (kDepth / 2));
        }
      };
      if constexpr (kCluster == 1) {
        copy_half(0);
        copy_half(1);
      } else {
        copy_half(walk.rank);
      }
      at.next();
    }
  }
}

/// A warp of a consumer has read a stage. This notifies every block of the cluster that copies into it.
template <int kCluster>
__device__ void release(Barrier& empty, int lane) {
  if constexpr (kCluster == 1) {
    if (lane == 0) hopper::arrive(empty);
  } else {
    if (lane < kCluster) hopper::arrive_at(empty, static_cast<unsigned>(lane));
  }
}

using Sums = float[kHalves][kTileColumns / 2];

/// sums = a b of a tile. `hand_over` is called after the last products are issued: the other consumer's may follow.
template <class T, Pass kPass, int kCluster, class HandOver>
__device__ __forceinline__ void multiply_tile(Sums& sums, SharedMemory<kPass>& shared,
                                              hopper::RingPlace<SharedMemory<kPass>::kStages>& at, int stages, int lane,
                                              const HandOver& hand_over) {
  using A = hopper::Operand<Major::sum>;
  constexpr Major kMajorOfB = kPass == Pass::forward ? Major::sum : Major::other;
  using B = hopper::Operand<kMajorOfB>;
  int last_stage = 0;
  for (int i = 0; i < stages; ++i) {
    hopper::wait(shared.full[at.place], at.parity);
    const std::uint64_t a = A::descriptor(shared.stages[at.place].a), b = B::descriptor(shared.stages[at.place].b);
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        hopper::multiply<T, kMajorOfB>(sums[half], a + half * (kBoxBytes / 16) + step * A::kStep, b + step * B::kStep,
                                       i + step > 0);
      }
    }
    hopper::commit_products();
    if (i > 0) {
      hopper::wait_for_products<1>();
      release<kCluster>(shared.empty[last_stage], lane);
    }
    last_stage = at.place;
    at.next();
  }
  hand_over();
  hopper::wait_for_products<0>();
  release<kCluster>(shared.empty[last_stage], lane);
  hopper::hold(sums);
}

/// The lane's columns of 64 of a bias: words[t] are 8 t + 2 (lane % 4) and the next.
__device__ __forceinline__ void load_bias(std::uint32_t (&words)[kSide / 8], const GeluProductArgs& args, int column,
                                          int lane) {
  column += 2 * (lane % 4);
#pragma unroll
  for (int t = 0; t < kSide / 8; ++t) {
    const int at = column + 8 * t;
    words[t] = at < args.columns ? __ldg(static_cast<const std::uint32_t*>(args.bias) + at / 2) : 0u;
  }
}

/// z = sums + bias and y = gelu(z) of a warp's part of a tile, whose first element is at (row, column). It works by
/// chunks: the stores of one go on while the next is computed. `bias` is that of the first 64 columns.
template <class T>
__device__ __forceinline__ void finish_forward(const GeluProductArgs& args,
                                               std::byte (&chunks)[kChunks<Pass::forward>][kChunkBytes],
                                               const Sums& sums, std::uint32_t (&bias)[kSide / 8], int row, int column,
                                               int lane) {
#pragma unroll
  for (int side = 0; side < kSides; ++side) {
    if (side > 0) load_bias(bias, args, column + side * kSide, lane);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      std::byte *const z = chunks[2 * half], *const y = chunks[2 * half + 1];
      if (lane == 0) hopper::wait_for_reads_of_stores<1>();
      __syncwarp();
#pragma unroll
      for (int block = 0; block < kSide / 16; ++block) {
        const int t = side * (kSide / 8) + 2 * block;
        std::uint32_t rounded[4], activated[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 shift = unpacked<T>(bias[2 * block + i / 2]);
          const float first = sums[half][4 * t + 2 * i] + shift.x, second = sums[half][4 * t + 2 * i + 1] + shift.y;
          rounded[i] = packed<T>(first, second);
          activated[i] = packed<T>(first * gelu_gate(first), second * gelu_gate(second));
        }
        hopper::store_matrices(z + chunk_offset(block, lane), rounded);
        hopper::store_matrices(y + chunk_offset(block, lane), activated);
      }
      hopper::fence_writes();
      __syncwarp();
      if (lane == 0) {
        hopper::store_box(args.z, z, column + side * kSide, row + half * kHalf);
        hopper::store_box(args.out, y, column + side * kSide, row + half * kHalf);
        hopper::commit_stores();
      }
    }
  }
}

/// Starts the copy of a warp's part of z to its chunks.
__device__ inline void prefetch_z(const GeluProductArgs& args,
                                  std::byte (&chunks)[kChunks<Pass::backward>][kChunkBytes], Barrier& z_full, int row,
                                  int column, int lane) {
  if (lane > 0) return;
  hopper::wait_for_reads_of_stores<0>();  // those of the last tile's dz
  hopper::arrive_and_expect(z_full, kChunks<Pass::backward> * kChunkBytes);
  for (int half = 0; half < kHalves; ++half) {
    for (int side = 0; side < kSides; ++side)
      hopper::load_box(chunks[half * kSides + side], args.z, z_full, column + side * kSide, row + half * kHalf);
  }
}

/// Halves the 2 kWidth sums of a lane. It keeps the half that bit `mask` of its number selects, plus the other lane's.
template <int kWidth>
__device__ __forceinline__ void add_half(float (&sums)[kSide / 4], int lane, int mask) {
  const bool upper = (lane & mask) != 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float kept = upper ? sums[kWidth + i] : sums[i], given = upper ? sums[i] : sums[kWidth + i];
    sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, mask);
  }
}

/// sums[2 t + e] are over a lane's rows of column 8 t + 2 (lane % 4) + e. Adds those of lanes with the same columns, in
/// a fixed order. The lane gets columns 2 lane and the next.
__device__ __forceinline__ float2 add_lanes(float (&sums)[kSide / 4], int lane) {
  add_half<8>(sums, lane, 16);
  add_half<4>(sums, lane, 8);
  add_half<2>(sums, lane, 4);
  return {sums[0], sums[1]};
}

/// dz = sums * gelu'(z) of a warp's part of a tile, over z in the chunks. Returns the sums of its columns side * 64 + 2
/// lane and the next.
template <class T>
__device__ __forceinline__ void finish_backward(float2 (&column_sums)[kSides], const GeluProductArgs& args,
                                                std::byte (&chunks)[kChunks<Pass::backward>][kChunkBytes],
                                                const Sums& sums, int row, int column, int lane) {
#pragma unroll
  for (int side = 0; side < kSides; ++side) {
    float lane_sums[kSide / 4] = {};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      std::byte* const chunk = chunks[half * kSides + side];
#pragma unroll
      for (int block = 0; block < kSide / 16; ++block) {
        const int t = side * (kSide / 8) + 2 * block;
        std::uint32_t words[4];
        load_matrices(words, chunk + chunk_offset(block, lane));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 z = unpacked<T>(words[i]);
          const float first = sums[half][4 * t + 2 * i] * gelu_slope(z.x),
                      second = sums[half][4 * t + 2 * i + 1] * gelu_slope(z.y);
          float* const to = lane_sums + 2 * (2 * block + i / 2);
          to[0] += first;
          to[1] += second;
          words[i] = packed<T>(first, second);
        }
        hopper::store_matrices(chunk + chunk_offset(block, lane), words);
      }
      hopper::fence_writes();
      __syncwarp();
      if (lane == 0) {
        hopper::store_box(args.out, chunk, column + side * kSide, row + half * kHalf);
        hopper::commit_stores();
      }
    }
    column_sums[side] = add_lanes(lane_sums, lane);
  }
}

/// Adds the warps' sums in order and writes the tile's row of parts. All threads of a consumer.
__device__ inline void store_column_sums(const GeluProductArgs& args, float (&others)[kGroupWarps - 1][kSide],
                                         const float2 (&column_sums)[kSides], const Tile& tile, int consumer, int warp,
                                         int lane) {
#pragma unroll
  for (int side = 0; side < kSides; ++side) {
    // Between two tiles the wait for the tensor cores keeps the next sums from overtaking.
    if (side > 0) hopper::sync_named(kSumsBarrier + consumer, kGroupThreads);
    if (warp > 0) reinterpret_cast<float2*>(others[warp - 1])[lane] = column_sums[side];
    hopper::sync_named(kSumsBarrier + consumer, kGroupThreads);
    const int column = tile.column + side * kSide + 2 * lane;
    if (warp > 0 || column >= args.columns || tile.row >= args.rows) continue;
    float2 sum = column_sums[side];
    for (const float(&other)[kSide] : others) {
      const float2 more = reinterpret_cast<const float2*>(other)[lane];
      sum.x += more.x;
      sum.y += more.y;
    }
    float* const part =
        args.parts + static_cast<std::size_t>(tile.row / kTileRows) * static_cast<std::size_t>(args.columns);
    reinterpret_cast<float2*>(part)[column / 2] = sum;  // the number of columns is a multiple of 8
  }
}

/// A warp group computes every other tile of the block.
template <class T, Pass kPass, int kCluster>
__device__ __forceinline__ void consume(const GeluProductArgs& args, SharedMemory<kPass>& shared, int consumer) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kGroupWarps, lane = static_cast<int>(threadIdx.x) % kWarp;
  auto& chunks = shared.chunks[consumer * kGroupWarps + warp];
  Barrier& z_full = shared.z_full[consumer * kGroupWarps + warp];
  unsigned z_parity = 0;

  const TileWalk<kCluster> walk(args);
  const int stages = (args.depth + kDepth - 1) / kDepth;
  hopper::RingPlace<SharedMemory<kPass>::kStages> at;
  at.skip(consumer * stages);
  if (consumer == 1) hopper::arrive_named(kTurnBarrier, 2 * kGroupThreads);  // consumer 0 begins
  for (int i = consumer; i < walk.count; i += kConsumers) {
    const Tile tile = walk.tile(i);
    const int row = tile.row + warp * kChunkRows;
    std::uint32_t bias[kSide / 8];
    if constexpr (kPass == Pass::forward) {
      load_bias(bias, args, tile.column, lane);
    } else {
      prefetch_z(args, chunks, z_full, row, tile.column, lane);
      __syncwarp();
    }
    Sums sums;
    hopper::sync_named(kTurnBarrier + consumer, 2 * kGroupThreads);
    multiply_tile<T, kPass, kCluster>(sums, shared, at, stages, lane, [&] {
      if (i + 1 < walk.count) hopper::arrive_named(kTurnBarrier + 1 - consumer, 2 * kGroupThreads);
    });
    at.skip(stages);
    if constexpr (kPass == Pass::forward) {
      finish_forward<T>(args, chunks, sums, bias, row, tile.column, lane);
    } else {
      hopper::wait(z_full, z_parity);
      z_parity ^= 1u;
      float2 column_sums[kSides];
      finish_backward<T>(column_sums, args, chunks, sums, row, tile.column, lane);
      store_column_sums(args, shared.column_sums[consumer], column_sums, tile, consumer, warp, lane);
    }
  }
  if (lane == 0) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
}

template <class T, Pass kPass, int kCluster>
__device__ __forceinline__ void run_block(const GeluProductArgs& args, SharedMemory<kPass>& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < SharedMemory<kPass>::kStages; ++stage) {
      hopper::init(shared.full[stage], 1);
      hopper::init(shared.empty[stage], kGroupWarps * kCluster);
    }
    for (Barrier& barrier : shared.z_full) hopper::init(barrier, 1);
    hopper::fence_init();
  }
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    hopper::sync_cluster();
  }
  // All threads of a warp agree on it, which the compiler cannot know.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == 0) {
    hopper::shrink_registers<kCopyRegisters>();
    if (threadIdx.x == 0) {
      for (const CUtensorMap* map : {&args.a, &args.b, &args.z, &args.out}) hopper::prefetch_map(*map);
      copy_operands<kPass, kCluster>(args, shared);
    }
    __syncwarp();
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    consume<T, kPass, kCluster>(args, shared, group - 1);
  }
  // A block may not end while another of its cluster can copy into it or arrive at its barriers.
  if constexpr (kCluster > 1) hopper::sync_cluster();
}

/// See the top. Reads a (rows x depth) and b (depth x columns), 2 bytes per element. Forward writes z and y, 2 bytes
/// per element each. Backward reads z and writes dz, as many bytes, and 4 bytes per column and 128 rows of parts.
///
/// Measured alone on an H200, bf16, in % of the rate of the same GEMM by cuBLASLt without an epilogue. Figures are for
/// forward and backward, the latter with the sum of the parts:
///   32768 x 3072 x 768 79 and 71, 16384 x 4096 x 1024 90 and 77, 8192 x 6144 x 1536 90 and 81.
/// Tiles of 192 columns: 82 and 60 for the first. Shared memory is the bound: 160 bytes per clock would be needed, 128
/// are there.
template <class T, Pass kPass, int kCluster>
__global__ void __launch_bounds__(kBlockThreads, 1) gelu_product_kernel(const __grid_constant__ GeluProductArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte gelu_product_shared[];
  run_block<T, kPass, kCluster>(args, *reinterpret_cast<SharedMemory<kPass>*>(gelu_product_shared));
#endif
}

}  // namespace megalith::ops::cuda::gelu_tiles
