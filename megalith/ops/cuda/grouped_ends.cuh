#pragma once
#include <cstddef>

#include "megalith/ops/cuda/chunks.cuh"
#include "megalith/ops/cuda/gelu.cuh"
#include "megalith/ops/cuda/grouped_walk.cuh"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/cuda/ptx.h"
#include "megalith/ops/cuda/silu.cuh"

// What becomes of the sums of a tile of the grouped GEMMs (grouped_tiles.cuh). A warp has 16 rows of a tile. Results
// pass through shared memory in chunks of 16 rows of 128 bytes, which no other warp touches.

namespace megalith::ops::cuda::grouped_tiles {

/// Those of a lane: hopper::multiply() tells where they are.
using Sums = float[kTileColumns / 2];

inline constexpr int kSide = 64;   // 16-bit elements of a chunk's row
inline constexpr int kBlocks = 8;  // of 8 columns, a side's
template <int kCount>
struct ChunkSet {
  std::byte at[kCount][kChunkBytes];
};
using Chunks = ChunkSet<2>;

/// Writes chunks in turn: with two, the copy of one goes on while the next is filled. All lanes of a warp call it
/// together.
template <int kCount>
class ChunkSetWriter {
 public:
  __device__ explicit ChunkSetWriter(ChunkSet<kCount>& chunks) : chunks_(chunks) {}

  /// The next chunk, when its last copy has read it.
  __device__ std::byte* next() {
    if (hopper::is_elected()) hopper::wait_for_reads_of_stores<kCount - 1>();
    __syncwarp();
    turn_ = (turn_ + 1) % kCount;
    return chunks_.at[turn_];
  }
  /// store(chunk) by one lane, when all have written.
  template <class Store>
  __device__ void send(const Store& store) {
    hopper::fence_writes();
    __syncwarp();
    if (!hopper::is_elected()) return;
    store(chunks_.at[turn_]);
    hopper::commit_stores();
  }

 private:
  ChunkSet<kCount>& chunks_;
  int turn_ = 0;
};
using ChunkWriter = ChunkSetWriter<2>;

/// Fills a chunk of 64 16-bit columns: words[t] of a lane are columns 8 t + 2 (lane % 4) and the next, in row lane / 4
/// (upper) and eight rows below (lower).
__device__ __forceinline__ void fill_by_pairs(std::byte* chunk, const std::uint32_t (&upper)[kBlocks],
                                              const std::uint32_t (&lower)[kBlocks], int lane) {
#pragma unroll
  for (int block = 0; block < kBlocks / 2; ++block) {
    hopper::store_matrices(chunk + chunk_offset(block, lane),
                           {upper[2 * block], lower[2 * block], upper[2 * block + 1], lower[2 * block + 1]});
  }
}

/// Fills a chunk: eights[t] of a lane are the bytes 32 t + 8 (lane % 4) to + 7, in row lane / 4 (upper) and eight rows
/// below (lower). Rows of odd number write in another order, so that no two lanes meet in a bank.
__device__ __forceinline__ void fill_by_eights(std::byte* chunk, const uint2 (&upper)[4], const uint2 (&lower)[4],
                                               int lane) {
  const int row = lane / 4 % 8;
  const bool is_odd = row % 2 != 0;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int at = is_odd ? t ^ 2 : t;
    std::byte* const to = chunk + row * kChunkRowBytes + ((2 * at + lane % 4 / 2) ^ row) * 16 + lane % 2 * 8;
    *reinterpret_cast<uint2*>(to) = is_odd ? upper[t ^ 2] : upper[t];
    *reinterpret_cast<uint2*>(to + 8 * kChunkRowBytes) = is_odd ? lower[t ^ 2] : lower[t];
  }
}

/// The counterparts of both.
__device__ __forceinline__ void read_by_pairs(std::uint32_t (&upper)[kBlocks][1], std::uint32_t (&lower)[kBlocks][1],
                                              const std::byte* chunk, int lane) {
#pragma unroll
  for (int block = 0; block < kBlocks / 2; ++block) {
    std::uint32_t words[4];
    load_matrices(words, chunk + chunk_offset(block, lane));
    upper[2 * block][0] = words[0];
    lower[2 * block][0] = words[1];
    upper[2 * block + 1][0] = words[2];
    lower[2 * block + 1][0] = words[3];
  }
}
__device__ __forceinline__ void read_by_eights(uint2 (&upper)[4], uint2 (&lower)[4], const std::byte* chunk, int lane) {
  const int row = lane / 4 % 8;
  const bool is_odd = row % 2 != 0;
  uint2 above[4], below[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int at = is_odd ? t ^ 2 : t;
    const std::byte* const from = chunk + row * kChunkRowBytes + ((2 * at + lane % 4 / 2) ^ row) * 16 + lane % 2 * 8;
    above[t] = *reinterpret_cast<const uint2*>(from);
    below[t] = *reinterpret_cast<const uint2*>(from + 8 * kChunkRowBytes);
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    upper[t] = is_odd ? above[t ^ 2] : above[t];
    lower[t] = is_odd ? below[t ^ 2] : below[t];
  }
}

/// Fills the next chunk with the 64 columns `side` of the sums, rounded.
template <class T>
__device__ __forceinline__ void fill_by_sums(ChunkWriter& writer, const Sums& sums, int side, int lane) {
  std::uint32_t upper[kBlocks], lower[kBlocks];
#pragma unroll
  for (int t = 0; t < kBlocks; ++t) {
    const float* const at = sums + 4 * (side * kBlocks + t);
    upper[t] = packed<T>(at[0], at[1]);
    lower[t] = packed<T>(at[2], at[3]);
  }
  fill_by_pairs(writer.next(), upper, lower, lane);
}

/// The sums as they are, rounded.
template <class T, Kind kKind>
__device__ __forceinline__ void finish_plain(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                             const Tile& tile, int row, int lane) {
  const int group = is_weight_grad(kKind) ? tile.group : 0;
#pragma unroll
  for (int side = 0; side < kTileColumns / kSide; ++side) {
    fill_by_sums<T>(writer, sums, side, lane);
    writer.send(
        [&](const std::byte* chunk) { hopper::store_box(args.out, chunk, tile.column + side * kSide, row, group); });
  }
}

/// The squares of a warp's rows of a tile, added up: by a lane in f32 over a side of 16 numbers, the rest in f64.
__device__ __forceinline__ void store_squares(const GroupedArgs& args, const Sums& sums, const Tile& tile, int row,
                                              int lane) {
  double sum = 0;
#pragma unroll
  for (int side = 0; side < kTileColumns / 32; ++side) {
    float of_side = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) of_side = fmaf(sums[16 * side + i], sums[16 * side + i], of_side);
    sum += of_side;
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane != 0 || tile.column >= args.columns) return;
  const int tile_rows = (args.result_rows + kTileRows - 1) / kTileRows,
            tile_columns = (args.columns + kTileColumns - 1) / kTileColumns;
  const std::int64_t at =
      (std::int64_t{tile.group} * tile_rows + tile.row / kTileRows) * tile_columns + tile.column / kTileColumns;
  args.squares[at * kTileSquares + row % kTileRows / kChunkRows] = sum;
}

/// The sums as they are, f32, stored or added.
__device__ __forceinline__ void finish_wide(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                            const Tile& tile, int row, int lane) {
  constexpr int kWideSide = kChunkRowBytes / 4;
  if (args.squares != nullptr) store_squares(args, sums, tile, row, lane);
#pragma unroll
  for (int side = 0; side < kTileColumns / kWideSide; ++side) {
    uint2 upper[4], lower[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float* const at = sums + 4 * (4 * side + t);
      upper[t] = {__float_as_uint(at[0]), __float_as_uint(at[1])};
      lower[t] = {__float_as_uint(at[2]), __float_as_uint(at[3])};
    }
    fill_by_eights(writer.next(), upper, lower, lane);
    writer.send([&](const std::byte* chunk) {
      if (args.adds) {
        hopper::add_box(args.out, chunk, tile.column + side * kWideSide, row, tile.group);
      } else {
        hopper::store_box(args.out, chunk, tile.column + side * kWideSide, row, tile.group);
      }
    });
  }
}

/// Blocks of 8 columns of the sums are the gates of 8 units and their ups, in turn: the copy of the weight sorts them.
template <class T>
__device__ __forceinline__ void finish_up_gated(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                                const Tile& tile, int row, int lane) {
  const int unit = tile.column / 2;
#pragma unroll
  for (int side = 0; side < kTileColumns / 2 / kSide; ++side) {
    std::uint32_t upper[kBlocks], lower[kBlocks];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint2 z_upper[4], z_lower[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float *const gate = sums + 8 * (side * kBlocks + 4 * half + t), *const up = gate + 4;
        z_upper[t] = {packed<T>(gate[0], up[0]), packed<T>(gate[1], up[1])};
        z_lower[t] = {packed<T>(gate[2], up[2]), packed<T>(gate[3], up[3])};
        const std::uint32_t words[4] = {z_upper[t].x, z_upper[t].y, z_lower[t].x, z_lower[t].y};
        float h[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 z = unpacked<T>(words[i]);
          h[i] = z.x * silu_gate(z.x) * z.y;
        }
        upper[4 * half + t] = packed<T>(h[0], h[1]);
        lower[4 * half + t] = packed<T>(h[2], h[3]);
      }
      if (!args.has_more) continue;
      fill_by_eights(writer.next(), z_upper, z_lower, lane);
      writer.send([&](const std::byte* chunk) {
        hopper::store_box(args.more, chunk, tile.column + (2 * side + half) * kSide, row, 0);
      });
    }
    fill_by_pairs(writer.next(), upper, lower, lane);
    writer.send([&](const std::byte* chunk) { hopper::store_box(args.out, chunk, unit + side * kSide, row, 0); });
  }
}

template <class T>
__device__ __forceinline__ void finish_up_gelu(const GroupedArgs& args, ChunkWriter& writer, Sums& sums,
                                               const Tile& tile, int row, int lane) {
#pragma unroll
  for (int side = 0; side < kTileColumns / kSide; ++side) {
    const auto write = [&](const CUtensorMap& map) {
      fill_by_sums<T>(writer, sums, side, lane);
      writer.send([&](const std::byte* chunk) { hopper::store_box(map, chunk, tile.column + side * kSide, row, 0); });
    };
    if (args.has_more) write(args.more);
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) {
      float& sum = sums[4 * kBlocks * side + i];
      sum *= gelu_gate(sum);
    }
    write(args.out);
  }
}

/// Columns of z of a unit.
template <Kind kKind>
inline constexpr int kZPerUnit = kKind == Kind::down_gated ? 2 : 1;
/// z of a tile is copied in parts of 128 columns, which are two boxes of 64.
template <Kind kKind>
inline constexpr int kZParts = kZPerUnit<kKind>* kTileColumns / (2 * kSide);
inline constexpr int kZBoxBytes = kTileRows * kChunkRowBytes;

/// A lane's two rows of a tile, row and row + 8 of its warp's.
template <class T, Kind kKind>
struct DownRows {
  __device__ DownRows(const GroupedArgs& args, const Tile& tile, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + lane / 4 + 8 * i;
      is_there[i] = at < tile.end;
      p[i] = !is_there[i] ? 0.0f : args.p == nullptr ? 1.0f : __ldg(args.p + at);
    }
  }
  /// Replaces z of two units of row i by dz, and gives p h of both. first, second: their dh.
  __device__ std::uint32_t differentiate(std::uint32_t (&z)[kZPerUnit<kKind>], int i, float first, float second) {
    float h[2];
    if constexpr (kKind == Kind::down_gated) {
      const float dh[2] = {first, second};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 pair = unpacked<T>(z[j]);
        const float gate = pair.x, up = pair.y, s = silu_gate(gate), silu = gate * s, d = p[i] * dh[j];
        h[j] = silu * up;
        z[j] = packed<T>(d * up * fmaf(silu, 1.0f - s, s), d * silu);
      }
    } else {
      const float2 pair = unpacked<T>(z[0]);
      h[0] = pair.x * gelu_gate(pair.x);
      h[1] = pair.y * gelu_gate(pair.y);
      z[0] = packed<T>(p[i] * first * gelu_slope(pair.x), p[i] * second * gelu_slope(pair.y));
    }
    dp[i] += first * h[0] + second * h[1];
    return packed<T>(p[i] * h[0], p[i] * h[1]);
  }

  bool is_there[2];
  float p[2], dp[2] = {};
};

/// Replaces a box's chunk of z by dz, and adds p h of its units to words[kFirst...] of upper and lower rows.
template <class T, Kind kKind, int kFirst>
__device__ __forceinline__ void differentiate_chunk(DownRows<T, kKind>& rows, std::byte* chunk, const float* sums,
                                                    std::uint32_t (&ph_upper)[kBlocks],
                                                    std::uint32_t (&ph_lower)[kBlocks], int lane) {
  if constexpr (kKind == Kind::down_gated) {
    uint2 upper[4], lower[4];
    read_by_eights(upper, lower, chunk, lane);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      std::uint32_t above[2] = {upper[t].x, upper[t].y}, below[2] = {lower[t].x, lower[t].y};
      ph_upper[kFirst + t] = rows.differentiate(above, 0, sums[4 * t], sums[4 * t + 1]);
      ph_lower[kFirst + t] = rows.differentiate(below, 1, sums[4 * t + 2], sums[4 * t + 3]);
      upper[t] = {above[0], above[1]};
      lower[t] = {below[0], below[1]};
    }
    fill_by_eights(chunk, upper, lower, lane);
  } else {
    std::uint32_t upper[kBlocks][1], lower[kBlocks][1], dz_upper[kBlocks], dz_lower[kBlocks];
    read_by_pairs(upper, lower, chunk, lane);
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
      ph_upper[t] = rows.differentiate(upper[t], 0, sums[4 * t], sums[4 * t + 1]);
      ph_lower[t] = rows.differentiate(lower[t], 1, sums[4 * t + 2], sums[4 * t + 3]);
      dz_upper[t] = upper[t][0];
      dz_lower[t] = lower[t][0];
    }
    fill_by_pairs(chunk, dz_upper, dz_lower, lane);
  }
}

/// dz, p h and dp of a tile of dh. z comes in stages like the operands', where dz takes its place: take() gives the
/// warp's rows of the next one, give_back() lets the oldest be copied into.
template <class T, Kind kKind, class Take, class GiveBack>
__device__ __forceinline__ void finish_down(const GroupedArgs& args, Chunks& chunks, const Sums& sums, const Tile& tile,
                                            int row, int lane, const Take& take, const GiveBack& give_back) {
  constexpr bool kIsGated = kKind == Kind::down_gated;
  DownRows<T, kKind> rows(args, tile, row, lane);
#pragma unroll
  for (int part = 0; part < kZParts<kKind>; ++part) {
    std::byte* const z = take();
    std::uint32_t upper[kBlocks], lower[kBlocks];
    const float* const at = sums + part * (kIsGated ? 32 : 64);
    differentiate_chunk<T, kKind, 0>(rows, z, at, upper, lower, lane);
    if (!kIsGated) fill_by_pairs(chunks.at[0], upper, lower, lane);
    differentiate_chunk<T, kKind, kIsGated ? 4 : 0>(rows, z + kZBoxBytes, at + (kIsGated ? 16 : 32), upper, lower,
                                                    lane);
    fill_by_pairs(chunks.at[kIsGated ? part % 2 : 1], upper, lower, lane);
    hopper::fence_writes();
    __syncwarp();
    if (hopper::is_elected()) {
      const int column = kZPerUnit<kKind> * tile.column + part * 2 * kSide;
      hopper::store_box(args.out, z, column, row, 0);
      hopper::store_box(args.out, z + kZBoxBytes, column + kSide, row, 0);
      if (args.has_more) {
        const int unit = tile.column + part * (kIsGated ? kSide : 2 * kSide);
        hopper::store_box(args.more, chunks.at[kIsGated ? part % 2 : 0], unit, row, 0);
        if (!kIsGated) hopper::store_box(args.more, chunks.at[1], unit + kSide, row, 0);
      }
      hopper::commit_stores();
      if (kIsGated && part + 1 < kZParts<kKind>) {
        hopper::wait_for_reads_of_stores<1>();
      } else {
        hopper::wait_for_reads_of_stores<0>();
      }
    }
    __syncwarp();
    if (!kIsGated || part > 0) give_back();
    if (kIsGated && part + 1 == kZParts<kKind>) give_back();
  }
  if (args.parts == nullptr) return;
  const int tile_columns = (args.columns + kTileColumns - 1) / kTileColumns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = rows.dp[i];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 != 0 || !rows.is_there[i] || tile.column >= args.columns) continue;
    args.parts[static_cast<std::int64_t>(row + lane / 4 + 8 * i) * tile_columns + tile.column / kTileColumns] = sum;
  }
}

template <class T, Kind kKind>
__device__ __forceinline__ void finish(const GroupedArgs& args, Chunks& chunks, Sums& sums, const Tile& tile, int row,
                                       int lane) {
  ChunkWriter writer(chunks);
  if constexpr (kKind == Kind::weight_grad_f32) {
    finish_wide(args, writer, sums, tile, row, lane);
  } else if constexpr (kKind == Kind::up_gated) {
    finish_up_gated<T>(args, writer, sums, tile, row, lane);
  } else if constexpr (kKind == Kind::up_gelu) {
    finish_up_gelu<T>(args, writer, sums, tile, row, lane);
  } else {
    finish_plain<T, kKind>(args, writer, sums, tile, row, lane);
  }
}

}  // namespace megalith::ops::cuda::grouped_tiles
