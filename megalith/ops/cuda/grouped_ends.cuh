#pragma once
#include <cstddef>

#include "megalith/ops/cuda/gelu.cuh"
#include "megalith/ops/cuda/grouped_walk.cuh"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/cuda/ptx.h"

// What becomes of the sums of a tile of the grouped GEMMs (grouped_tiles.cuh). A warp has 16 rows of a tile. Results
// pass through shared memory in chunks of 16 rows of 128 bytes, which no other warp touches.

namespace megalith::ops::cuda::grouped_tiles {

/// Those of a lane: hopper::multiply() tells where they are.
using Sums = float[kTileColumns / 2];

inline constexpr int kChunkRows = 16, kChunkRowBytes = 128, kChunkBytes = kChunkRows * kChunkRowBytes;
inline constexpr int kSide = 64;   // 16-bit elements of a chunk's row
inline constexpr int kBlocks = 8;  // of 8 columns, a side's
struct Chunks {
  std::byte at[2][kChunkBytes];
};

template <class T>
__device__ std::uint32_t packed_words(float low, float high) {
  const auto pair = convert_pair<T>(low, high);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
template <class T>
__device__ float2 unpacked_words(std::uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
  }
}

/// Writes chunks in turn: the copy of one goes on while the next is filled. All lanes of a warp call it together.
class ChunkWriter {
 public:
  __device__ ChunkWriter(Chunks& chunks, int lane) : chunks_(chunks), lane_(lane) {}

  /// The next chunk, when its last copy has read it.
  __device__ std::byte* next() {
    if (lane_ == 0) hopper::wait_for_reads_of_stores<1>();
    __syncwarp();
    turn_ ^= 1;
    return chunks_.at[turn_];
  }
  /// store(chunk) by one lane, when all have written.
  template <class Store>
  __device__ void send(const Store& store) {
    hopper::fence_writes();
    __syncwarp();
    if (lane_ > 0) return;
    store(chunks_.at[turn_]);
    hopper::commit_stores();
  }

 private:
  Chunks& chunks_;
  int lane_, turn_ = 0;
};

/// Fills a chunk of 64 16-bit columns: words[t] of a lane are columns 8 t + 2 (lane % 4) and the next, in row lane / 4
/// (upper) and eight rows below (lower).
__device__ __forceinline__ void fill_by_pairs(std::byte* chunk, const std::uint32_t (&upper)[kBlocks],
                                              const std::uint32_t (&lower)[kBlocks], int lane) {
#pragma unroll
  for (int block = 0; block < kBlocks / 2; ++block) {
    const int row = lane % kChunkRows, vector = 2 * block + lane / kChunkRows;
    hopper::store_matrices(chunk + row * kChunkRowBytes + (vector ^ row % 8) * 16,
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

/// The sums as they are, rounded.
template <class T, Kind kKind>
__device__ __forceinline__ void finish_plain(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                             const Tile& tile, int row, int lane) {
  const int group = is_weight_grad(kKind) ? tile.group : 0;
#pragma unroll
  for (int side = 0; side < kTileColumns / kSide; ++side) {
    std::uint32_t upper[kBlocks], lower[kBlocks];
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
      const float* const at = sums + 4 * (side * kBlocks + t);
      upper[t] = packed_words<T>(at[0], at[1]);
      lower[t] = packed_words<T>(at[2], at[3]);
    }
    fill_by_pairs(writer.next(), upper, lower, lane);
    writer.send(
        [&](const std::byte* chunk) { hopper::store_box(args.out, chunk, tile.column + side * kSide, row, group); });
  }
}

/// The sums as they are, f32, stored or added.
__device__ __forceinline__ void finish_wide(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                            const Tile& tile, int row, int lane) {
  constexpr int kWideSide = kChunkRowBytes / 4;
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

/// 1 / (1 + e^-z), as in swiglu.cu.
__device__ __forceinline__ float gate_sigmoid(float z) { return reciprocal_approx(1.0f + exp2_approx(-kLog2E * z)); }

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
        z_upper[t] = {packed_words<T>(gate[0], up[0]), packed_words<T>(gate[1], up[1])};
        z_lower[t] = {packed_words<T>(gate[2], up[2]), packed_words<T>(gate[3], up[3])};
        float h[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) h[i] = gate[i] * gate_sigmoid(gate[i]) * up[i];
        upper[4 * half + t] = packed_words<T>(h[0], h[1]);
        lower[4 * half + t] = packed_words<T>(h[2], h[3]);
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
      std::uint32_t upper[kBlocks], lower[kBlocks];
#pragma unroll
      for (int t = 0; t < kBlocks; ++t) {
        const float* const at = sums + 4 * (side * kBlocks + t);
        upper[t] = packed_words<T>(at[0], at[1]);
        lower[t] = packed_words<T>(at[2], at[3]);
      }
      fill_by_pairs(writer.next(), upper, lower, lane);
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

/// Fetches a tile of z into the L2. One thread.
template <Kind kKind>
__device__ void prefetch_z(const GroupedArgs& args, const Tile& tile) {
  constexpr int kWidth = kKind == Kind::down_gated ? 2 : 1;
  for (int i = 0; i < kWidth; ++i)
    hopper::prefetch_box(args.z_tile, kWidth * tile.column + i * kTileColumns, tile.row, 0);
}

/// A lane's two rows of a tile, row and row + 8 of its warp's, with what it reads and sums up of them.
template <class T, Kind kKind>
struct DownRows {
  static constexpr int kWidth = kKind == Kind::down_gated ? 2 : 1;  // columns of z per unit
  struct Z {
    std::uint32_t words[2][kWidth];  // of both rows, two units
  };

  __device__ DownRows(const GroupedArgs& args, const Tile& tile, int row, int lane)
      : units(args.columns), unit(tile.column + 2 * (lane % 4)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + lane / 4 + 8 * i;
      is_there[i] = at < tile.end;
      z[i] = static_cast<const T*>(args.z) + static_cast<std::int64_t>(is_there[i] ? at : tile.row) * args.z_columns;
      p[i] = !is_there[i] ? 0.0f : args.p == nullptr ? 1.0f : __ldg(args.p + at);
    }
  }
  /// Of block `t` of 8 units.
  __device__ Z load(int t) const {
    Z loaded{};
    const int at = unit + 8 * t;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (at >= units || !is_there[i]) continue;
      if constexpr (kWidth == 2) {
        const uint2 words = __ldcg(reinterpret_cast<const uint2*>(z[i] + 2 * at));
        loaded.words[i][0] = words.x;
        loaded.words[i][1] = words.y;
      } else {
        loaded.words[i][0] = __ldcg(reinterpret_cast<const std::uint32_t*>(z[i] + at));
      }
    }
    return loaded;
  }
  /// Replaces z of two units and row i by dz, and gives p h of both.
  __device__ std::uint32_t differentiate(Z& loaded, int i, float first, float second) {
    std::uint32_t(&words)[kWidth] = loaded.words[i];
    float h[2];
    if constexpr (kWidth == 2) {
      const float dh[2] = {first, second};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 pair = unpacked_words<T>(words[j]);
        const float gate = pair.x, up = pair.y, s = gate_sigmoid(gate), silu = gate * s, d = p[i] * dh[j];
        h[j] = silu * up;
        words[j] = packed_words<T>(d * up * (s * (1.0f + gate * (1.0f - s))), d * silu);
      }
    } else {
      const float2 pair = unpacked_words<T>(words[0]);
      h[0] = pair.x * gelu_gate(pair.x);
      h[1] = pair.y * gelu_gate(pair.y);
      words[0] = packed_words<T>(p[i] * first * gelu_slope(pair.x), p[i] * second * gelu_slope(pair.y));
    }
    dp[i] += first * h[0] + second * h[1];
    return packed_words<T>(p[i] * h[0], p[i] * h[1]);
  }

  int units, unit;
  bool is_there[2];
  const T* z[2];
  float p[2], dp[2] = {};
};

/// dz, p h and dp of a tile of dh.
template <class T, Kind kKind>
__device__ __forceinline__ void finish_down(const GroupedArgs& args, ChunkWriter& writer, const Sums& sums,
                                            const Tile& tile, int row, int lane) {
  using Rows = DownRows<T, kKind>;
  constexpr int kAhead = 4, kAll = kTileColumns / 8;  // blocks of 8 units: how many loads precede their use
  Rows rows(args, tile, row, lane);
  typename Rows::Z z[kAhead];
#pragma unroll
  for (int t = 0; t < kAhead; ++t) z[t] = rows.load(t);
#pragma unroll
  for (int side = 0; side < kTileColumns / kSide; ++side) {
    std::uint32_t ph_upper[kBlocks], ph_lower[kBlocks], dz_upper[kBlocks], dz_lower[kBlocks];
    uint2 upper[4], lower[4];
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
      const int block = side * kBlocks + t;
      const float* const at = sums + 4 * block;
      typename Rows::Z now = z[block % kAhead];
      if (block + kAhead < kAll) z[block % kAhead] = rows.load(block + kAhead);
      ph_upper[t] = rows.differentiate(now, 0, at[0], at[1]);
      ph_lower[t] = rows.differentiate(now, 1, at[2], at[3]);
      if constexpr (Rows::kWidth == 2) {
        upper[t % 4] = {now.words[0][0], now.words[0][1]};
        lower[t % 4] = {now.words[1][0], now.words[1][1]};
        if (t % 4 != 3) continue;
        fill_by_eights(writer.next(), upper, lower, lane);
        writer.send([&](const std::byte* chunk) {
          hopper::store_box(args.out, chunk, 2 * tile.column + (2 * side + t / 4) * kSide, row, 0);
        });
      } else {
        dz_upper[t] = now.words[0][0];
        dz_lower[t] = now.words[1][0];
      }
    }
    const int column = tile.column + side * kSide;
    if constexpr (Rows::kWidth == 1) {
      fill_by_pairs(writer.next(), dz_upper, dz_lower, lane);
      writer.send([&](const std::byte* chunk) { hopper::store_box(args.out, chunk, column, row, 0); });
    }
    if (!args.has_more) continue;
    fill_by_pairs(writer.next(), ph_upper, ph_lower, lane);
    writer.send([&](const std::byte* chunk) { hopper::store_box(args.more, chunk, column, row, 0); });
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
  ChunkWriter writer(chunks, lane);
  if constexpr (kKind == Kind::weight_grad_f32) {
    finish_wide(args, writer, sums, tile, row, lane);
  } else if constexpr (kKind == Kind::up_gated) {
    finish_up_gated<T>(args, writer, sums, tile, row, lane);
  } else if constexpr (kKind == Kind::up_gelu) {
    finish_up_gelu<T>(args, writer, sums, tile, row, lane);
  } else if constexpr (is_down(kKind)) {
    finish_down<T, kKind>(args, writer, sums, tile, row, lane);
  } else {
    finish_plain<T, kKind>(args, writer, sums, tile, row, lane);
  }
}

}  // namespace megalith::ops::cuda::grouped_tiles
