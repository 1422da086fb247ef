#pragma once
#include <cstddef>

#include "megalith/ops/cuda/grouped_ends.cuh"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/quantise.h"

// GEMMs of E4M3 operands with block scales, dense and grouped. A thread block stays on its SM and computes tiles of 128
// rows. A warp finds tiles and copies operands and scales, a block of 128 of the sum's index per stage; another copies
// scales of columns. Two warp groups ("consumers") have 64 rows of a tile each. A consumer makes the products of a
// stage with the tensor cores, and adds them, times both scales, to its sums in f32. Meanwhile the other has the tensor
// cores. A sum does not depend on the tile's form, nor on other rows.
//
// By count, a stage moves 156 bytes per cycle of the tensor cores through shared memory with tiles of 128 columns, and
// 136 with 192, of 128 that it can. On an H200 its power is the bound of both after some ms: 1,000 to 1,260 TFLOP/s
// where the products are those of activations and weights, 640 to 1,010 for weight gradients, as cuBLASLt's 1,000 to
// 1,220 and 650 to 1,020 (36 GEMMs of Llama 1B and 8B and of GPT-2 1.2B). Also tried: 256 columns as two products of
// 128, which read the rows' operand twice (0.9 of the rate of 192), and two buffers of products, so that a consumer
// adds one while its next is made (0.97 of one buffer's rate, with 128 and 192 columns).

namespace megalith::ops::cuda::scaled_tiles {

using grouped_tiles::ChunkSet;
using grouped_tiles::ChunkSetWriter;
using hopper::Barrier;
using hopper::RingPlace;

inline constexpr int kTileRows = 128, kDepth = 128;  // kDepth: indices of the sum of a stage
inline constexpr int kSquareSide = static_cast<int>(kScaleBlock);
inline constexpr int kTileSlots = 2;
inline constexpr int kConsumers = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
inline constexpr int kConsumerRows = kTileRows / kConsumers;
inline constexpr int kBlockThreads = (kConsumers + 1) * kGroupThreads;
inline constexpr int kCopyRegisters = 40, kConsumerRegisters = 232;  // as in grouped_tiles.cuh
inline constexpr int kBand = 16;                                     // rows of tiles whose operands stay in the L2
inline constexpr int kLeadBarrier = 1;                               // a named barrier: consumer 1 may begin
inline constexpr int kLead = 1;  // stages of the first tile that consumer 0 is ahead

/// How a tile is computed. Sums and products are registers, kColumns / 2 of a thread each. Blocks of a cluster have
/// tiles below each other, and each copies a part of the columns' operand for all. A warp stores by kChunks chunks.
template <int kColumns_, int kCluster_, int kChunks_>
struct TileForm {
  static constexpr int kColumns = kColumns_, kCluster = kCluster_, kChunks = kChunks_;
  /// Columns that share a square's scale, wherever the tile begins.
  static constexpr int kShared = kColumns % kSquareSide == 0 ? kSquareSide : 64;
  static constexpr int kSquares = kColumns / kShared;
  static_assert(kColumns == 128 || kColumns == 192);
};

struct ScaledArgs {
  CUtensorMap a, b, out;
  CUtensorMap a_scales;
  const float* b_scales;             // of vectors or squares
  Index b_stride;                    // between blocks of the sum's index (vectors) or rows of squares
  const std::int32_t *begin, *rows;  // [groups]; grouped GEMMs
  int groups, all_rows;              // grouped GEMMs; the rows of all groups' buffer
  int result_rows;                   // of a dense GEMM; of each group for weight gradients of groups
  int columns;                       // of the result; of each group for weight gradients of groups
  int depth;                         // but weight gradients of groups
  bool adds;                         // to a result in f32
  const void* bias;                  // of a dense GEMM's columns, of the type of its result; null: none
};

/// Rows of operands, and blocks of the sum's index where the sum begins.
struct ScaledTile {
  int group = -1;              // of the result; -1: no tile is left
  int row = 0, column = 0;     // of the result; of the group's matrix for weight gradients of groups
  int a_row = 0, a_block = 0;  // of the first stage
  int b_row = 0, b_block = 0;
  int steps = 0;  // stages; 0: the result is 0
};

template <class Form>
struct Operands {
  std::byte a[kTileRows * kDepth], b[Form::kColumns * kDepth];  // rows of 128 codes
};

/// Of a stage: those of rows, and those of columns in the order of place_of(), or of squares, one for each
/// Form::kShared columns.
template <class Form>
struct alignas(128) Scales {
  float a[kTileRows], b[Form::kColumns];
};

/// Where the scale of a column of a tile lies. A lane reads those of its columns 8 t + 2 q + 0..1 for two t at once:
/// shared memory has no time to spare.
__device__ constexpr int place_of(int column) {
  const int t = column / 8, q = column % 8 / 2;
  return 16 * (t / 2) + 4 * q + 2 * (t % 2) + column % 2;
}

template <class Form>
struct alignas(1024) SharedMemory {
  static constexpr int kBytes = 226 * 1024, kSmallBytes = 1024;  // in all, as in gelu_tiles.cuh; for what comes last
  static constexpr int kChunksBytes = kConsumers * kGroupWarps * static_cast<int>(sizeof(ChunkSet<Form::kChunks>));
  static constexpr int kStages =
      (kBytes - kSmallBytes - kChunksBytes) / static_cast<int>(sizeof(Operands<Form>) + sizeof(Scales<Form>));
  Operands<Form> stages[kStages];
  ChunkSet<Form::kChunks> chunks[kConsumers * kGroupWarps];
  Scales<Form> scales[kStages];
  ScaledTile tiles[kTileSlots];
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
};

/// The scales of the squares of a tile's columns, two rows of squares at most. A warp holds those of 32 blocks of the
/// sum's index, one per lane, and loads the next 32 before it needs them.
template <class Form>
class SquareScales {
 public:
  __device__ SquareScales(const ScaledArgs& args, const ScaledTile& tile, int lane) : lane_(lane), steps_(tile.steps) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = tile.b_row / kSquareSide + i;
      has_[i] = i == 0 || tile.column + i * kSquareSide - tile.b_row % kSquareSide < args.columns;
      from_[i] = args.b_scales + row * args.b_stride + tile.b_block;
    }
    offset_ = tile.b_row % kSquareSide;
    load(0);
  }
  /// Lane 0 writes those of block `block` of the tile's. Blocks come in ascending order, and all lanes call it
  /// together.
  __device__ void write(int block, float (&to)[Form::kColumns]) {
    if (block % kWarp == 0) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) held_[i] = coming_[i];
      load(block + kWarp);
    }
    float scales[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) scales[i] = __shfl_sync(0xffffffffu, held_[i], block % kWarp);
    if (lane_ > 0) return;
#pragma unroll
    for (int i = 0; i < Form::kSquares; ++i)
      to[i] = offset_ + i * Form::kShared < kSquareSide ? scales[0] : scales[kRows - 1];
  }

 private:
  static constexpr int kRows = Form::kColumns == kSquareSide ? 1 : 2;

  __device__ void load(int block) {
    const int at = block + lane_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) coming_[i] = has_[i] && at < steps_ ? __ldg(from_[i] + at) : 0.0f;
  }

  int lane_, steps_, offset_;
  bool has_[kRows];
  const float* from_[kRows];
  float held_[kRows] = {}, coming_[kRows];
};

/// Copies a stage's codes, and the scales of rows. Run by one thread. Every block of a cluster copies a part of b for
/// all.
template <class Form>
__device__ __forceinline__ void copy_stage(const ScaledArgs& args, Operands<Form>& operands, Scales<Form>& scales,
                                           Barrier& full, const ScaledTile& tile, int step) {
  constexpr int kPart = Form::kColumns / Form::kCluster;  // columns
  const int a_block = tile.a_block + step, b_block = tile.b_block + step;
  hopper::arrive_and_expect(full, sizeof(Operands<Form>) + sizeof(Scales<Form>::a));
  hopper::load_box(operands.a, args.a, full, a_block * kDepth, tile.a_row);
  if constexpr (Form::kCluster == 1) {
    hopper::load_box(operands.b, args.b, full, b_block * kDepth, tile.b_row);
  } else {
    const int first = static_cast<int>(blockIdx.x) % Form::kCluster * kPart;
    hopper::load_box_to((1u << Form::kCluster) - 1, operands.b + first * kDepth, args.b, full, b_block * kDepth,
                        tile.b_row + first);
  }
  hopper::load_box(scales.a, args.a_scales, full, tile.a_row, a_block);
}

/// Run by one warp.
template <class Form, class Walk, ScaleBlocks kBlocksOfB>
__device__ void copy_operands(const ScaledArgs& args, SharedMemory<Form>& shared, int lane) {
  Walk walk(args);
  RingPlace<SharedMemory<Form>::kStages> at;
  RingPlace<kTileSlots> slot;
  for (;; slot.next()) {
    const ScaledTile tile = walk.next();
    if (lane == 0) {
      hopper::wait(shared.tile_empty[slot.place], slot.parity ^ 1u);
      shared.tiles[slot.place] = tile;
      hopper::arrive(shared.tile_full[slot.place]);
    }
    if (tile.group < 0) return;
    const auto copy = [&](int step) {
      copy_stage<Form>(args, shared.stages[at.place], shared.scales[at.place], shared.full[at.place], tile, step);
    };
    if constexpr (kBlocksOfB == ScaleBlocks::vectors) {
      for (int i = 0; lane == 0 && i < tile.steps; ++i, at.next()) {
        hopper::wait(shared.empty[at.place], at.parity ^ 1u);
        copy(i);
      }
    } else {
      SquareScales<Form> squares(args, tile, lane);
      for (int i = 0; i < tile.steps; ++i, at.next()) {
        hopper::wait(shared.empty[at.place], at.parity ^ 1u);
        squares.write(i, shared.scales[at.place].b);
        if (lane == 0) copy(i);  // its arrival publishes the scales, too
      }
    }
    __syncwarp();
  }
}

/// Copies the scales of columns, for b by vectors. Run by one warp.
template <class Form, class Walk>
__device__ void copy_column_scales(const ScaledArgs& args, SharedMemory<Form>& shared, int lane) {
  Walk walk(args);
  RingPlace<SharedMemory<Form>::kStages> at;
  for (ScaledTile tile = walk.next(); tile.group >= 0; tile = walk.next()) {
    const float* from = args.b_scales + tile.b_block * args.b_stride + tile.b_row;
    for (int i = 0; i < tile.steps; ++i, from += args.b_stride, at.next()) {
      hopper::wait(shared.empty[at.place], at.parity ^ 1u);
#pragma unroll
      for (int first = 0; first < Form::kColumns; first += 2 * kWarp) {
        const int column = first + 2 * lane;
        hopper::copy_pair(shared.scales[at.place].b + place_of(column), from + column,
                          tile.column + column < args.columns);
      }
      hopper::arrive_after_copies(shared.full[at.place]);
    }
  }
}

__device__ inline ScaledTile uniform(ScaledTile tile) {
  for (int* x : {&tile.group, &tile.row, &tile.column, &tile.steps}) *x = __shfl_sync(0xffffffffu, *x, 0);
  return tile;
}

/// A warp of a consumer has read a stage. This notifies every block of the cluster, which copies into it.
template <class Form>
__device__ __forceinline__ void release(Barrier& empty, int lane) {
  __syncwarp();
  if constexpr (Form::kCluster == 1) {
    if (lane == 0) hopper::arrive(empty);
  } else {
    if (lane < Form::kCluster) hopper::arrive_at(empty, static_cast<unsigned>(lane));
  }
}

/// The sums of a consumer's 64 rows of tiles.
template <class Form, ScaleBlocks kBlocksOfB>
class ConsumerSums {
 public:
  using Sums = float[Form::kColumns / 2];  // of a lane: hopper::multiply() tells where they are

  __device__ ConsumerSums(SharedMemory<Form>& shared, int consumer, int warp, int lane)
      : shared_(shared),
        first_row_(consumer * kConsumerRows),
        row_(first_row_ + warp * kChunkRows + lane / 4),
        lane_(lane) {}

  /// sums = those of the next `steps` stages. After the first `lead` of them consumer 1 may begin; 0: it has.
  __device__ __forceinline__ void run(int steps, int lead, Sums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    Sums products;
    for (int i = 0; i < steps; ++i, at_.next()) {
      begin(products);
      if (i + 1 == lead) hopper::arrive_named(kLeadBarrier, kConsumers * kGroupThreads);
      const Factors factors = load();
      hopper::wait_for_products<0>();
      hopper::hold(products);
      add(products, factors, sums);
    }
  }

 private:
  static constexpr bool kByVectors = kBlocksOfB == ScaleBlocks::vectors;

  /// The scales of a lane's rows; with b by squares, times those of the squares.
  struct Factors {
    float upper[kByVectors ? 1 : Form::kSquares], lower[kByVectors ? 1 : Form::kSquares];
  };

  /// Issues the products of a stage.
  __device__ __forceinline__ void begin(Sums& products) {
    using Operand = hopper::Operand<hopper::Major::sum>;
    hopper::wait(shared_.full[at_.place], at_.parity);
    const Operands<Form>& stage = shared_.stages[at_.place];
    const std::uint64_t a = Operand::descriptor(stage.a + first_row_ * kDepth), b = Operand::descriptor(stage.b);
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kDepth / 32; ++step)
      hopper::multiply_e4m3(products, a + step * Operand::kStep, b + step * Operand::kStep, step > 0);
    hopper::commit_products();
  }

  __device__ __forceinline__ Factors load() const {
    const Scales<Form>& scales = shared_.scales[at_.place];
    const float upper = scales.a[row_], lower = scales.a[row_ + 8];
    Factors factors;
    if constexpr (kByVectors) {
      factors.upper[0] = upper;
      factors.lower[0] = lower;
    } else {
#pragma unroll
      for (int i = 0; i < Form::kSquares; ++i) {
        const float square = scales.b[i];
        factors.upper[i] = upper * square;
        factors.lower[i] = lower * square;
      }
    }
    return factors;
  }

  /// Adds the products, times their scales.
  __device__ __forceinline__ void add(const Sums& products, const Factors& factors, Sums& sums) {
    if (!kByVectors) release<Form>(shared_.empty[at_.place], lane_);
    const float* const columns = shared_.scales[at_.place].b + place_of(2 * (lane_ % 4));
    float4 pair;  // of columns, for two t
#pragma unroll
    for (int t = 0; t < Form::kColumns / 8; ++t) {
      float* const sum = sums + 4 * t;
      const float* const product = products + 4 * t;
      if constexpr (kByVectors) {
        if (t % 2 == 0) pair = *reinterpret_cast<const float4*>(columns + 8 * t);
        const float2 column = t % 2 == 0 ? float2{pair.x, pair.y} : float2{pair.z, pair.w};
        sum[0] = fmaf(factors.upper[0] * column.x, product[0], sum[0]);
        sum[1] = fmaf(factors.upper[0] * column.y, product[1], sum[1]);
        sum[2] = fmaf(factors.lower[0] * column.x, product[2], sum[2]);
        sum[3] = fmaf(factors.lower[0] * column.y, product[3], sum[3]);
      } else {
        const int square = 8 * t / Form::kShared;
        sum[0] = fmaf(factors.upper[square], product[0], sum[0]);
        sum[1] = fmaf(factors.upper[square], product[1], sum[1]);
        sum[2] = fmaf(factors.lower[square], product[2], sum[2]);
        sum[3] = fmaf(factors.lower[square], product[3], sum[3]);
      }
    }
    if (kByVectors) release<Form>(shared_.empty[at_.place], lane_);
  }

  SharedMemory<Form>& shared_;
  int first_row_, row_, lane_;
  RingPlace<SharedMemory<Form>::kStages> at_;
};

/// sums += the bias of a lane's columns.
template <class T, class Form>
__device__ __forceinline__ void add_bias(const ScaledArgs& args, const ScaledTile& tile,
                                         float (&sums)[Form::kColumns / 2], int lane) {
  const T* const bias = static_cast<const T*>(args.bias) + tile.column + 2 * (lane % 4);
#pragma unroll
  for (int t = 0; t < Form::kColumns / 8; ++t) {
    if (tile.column + 8 * t >= args.columns) break;  // columns are a multiple of 8
    const Values<float, 2> pair = unpack(load_pack<2>(bias, 8 * t));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[4 * t + i] += pair[i % 2];
  }
}

/// Stores a warp's 16 rows of a tile, or adds them, in chunks of 128 bytes of a row.
template <class T, class Form>
__device__ __forceinline__ void store_tile(const ScaledArgs& args, ChunkSet<Form::kChunks>& chunks,
                                           const ScaledTile& tile, int row, const float (&sums)[Form::kColumns / 2],
                                           int lane) {
  constexpr int kSide = kChunkRowBytes / static_cast<int>(sizeof(T)), kBlocks = kSide / 8;
  ChunkSetWriter<Form::kChunks> writer(chunks);
#pragma unroll
  for (int side = 0; side < Form::kColumns / kSide; ++side) {
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
      if (sizeof(T) == 4 && args.adds)
        hopper::add_box(args.out, chunk, column, row, tile.group);
      else
        hopper::store_box(args.out, chunk, column, row, tile.group);
    });
  }
}

template <class T, class Form, ScaleBlocks kBlocksOfB>
__device__ __forceinline__ void consume(const ScaledArgs& args, SharedMemory<Form>& shared, int consumer) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0) % kGroupWarps;
  auto& chunks = shared.chunks[consumer * kGroupWarps + warp];
  ConsumerSums<Form, kBlocksOfB> product(shared, consumer, warp, lane);
  RingPlace<kTileSlots> slot;
  for (bool is_first = true;; is_first = false, slot.next()) {
    hopper::wait(shared.tile_full[slot.place], slot.parity);
    const ScaledTile tile = uniform(shared.tiles[slot.place]);
    __syncwarp();  // all lanes have read it
    if (lane == 0) hopper::arrive(shared.tile_empty[slot.place]);
    if (tile.group < 0) break;
    const int lead = is_first && consumer == 0 ? min(kLead, tile.steps) : 0;
    if (is_first && tile.steps > 0 && consumer == 1) hopper::sync_named(kLeadBarrier, kConsumers * kGroupThreads);
    typename ConsumerSums<Form, kBlocksOfB>::Sums sums;
    product.run(tile.steps, lead, sums);
    if constexpr (sizeof(T) == 2) {
      if (args.bias != nullptr) add_bias<T, Form>(args, tile, sums, lane);
    }
    store_tile<T, Form>(args, chunks, tile, tile.row + consumer * kConsumerRows + warp * kChunkRows, sums, lane);
  }
  if (hopper::is_elected()) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
}

/// Waits for all threads of the blocks that copy into each other's memory.
template <class Form>
__device__ __forceinline__ void sync_blocks() {
  if constexpr (Form::kCluster > 1)
    hopper::sync_cluster();
  else
    __syncthreads();
}

/// See the top. A Walk gives a block's tiles. Reads a and b, a byte per element and 1/32 for scales, once for each band
/// of tiles; writes the result.
template <class T, class Form, class Walk, ScaleBlocks kBlocksOfB>
__global__ void __launch_bounds__(kBlockThreads, 1) scaled_kernel(const __grid_constant__ ScaledArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte scaled_shared[];
  static_assert(sizeof(SharedMemory<Form>) <= SharedMemory<Form>::kBytes);
  static_assert(sizeof(Operands<Form>) % 1024 == 0);
  SharedMemory<Form>& shared = *reinterpret_cast<SharedMemory<Form>*>(scaled_shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < SharedMemory<Form>::kStages; ++stage) {
      hopper::init(shared.full[stage], kBlocksOfB == ScaleBlocks::vectors ? 1 + kWarp : 1);
      hopper::init(shared.empty[stage], kConsumers * kGroupWarps * Form::kCluster);
    }
    for (int slot = 0; slot < kTileSlots; ++slot) {
      hopper::init(shared.tile_full[slot], 1);
      hopper::init(shared.tile_empty[slot], kConsumers * kGroupWarps);
    }
    hopper::fence_init();
  }
  sync_blocks<Form>();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kGroupWarps) {
    hopper::shrink_registers<kCopyRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) {
        for (const CUtensorMap* map : {&args.a, &args.b, &args.out, &args.a_scales}) hopper::prefetch_map(*map);
      }
      copy_operands<Form, Walk, kBlocksOfB>(args, shared, static_cast<int>(threadIdx.x));
    } else if (kBlocksOfB == ScaleBlocks::vectors && warp == 1) {
      copy_column_scales<Form, Walk>(args, shared, static_cast<int>(threadIdx.x) % kWarp);
    }
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    consume<T, Form, kBlocksOfB>(args, shared, warp / kGroupWarps - 1);
  }
  // A block may not end while another of its cluster can copy into it or arrive at its barriers.
  if constexpr (Form::kCluster > 1) hopper::sync_cluster();
#endif
}

}  // namespace megalith::ops::cuda::scaled_tiles
