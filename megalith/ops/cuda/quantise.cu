#include <cuda_fp8.h>

#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/quantise_kernels.h"

// A block of 256 threads takes one square of 128 x 128, which has all blocks of either kind whole. A thread holds 8
// neighbours of 8 consecutive rows in registers: lanes 0 to 15 of warp w have rows 16 w + 0 to 7, lanes 16 to 31 those
// from 16 w + 8 on. So a half-warp loads and stores whole rows of the square. The codes of `turned` cross through
// shared memory, 8 rows of a column per store; its 8-byte chunks are permuted, so that neither side has bank conflicts.
// Reads x once and writes every code once. x * (1 / scale) is one division and one product in f32, rounded to nearest
// even (nvcc's default), and cvt.rn.satfinite.e4m3x2 rounds as e4m3_code() does, for finite numbers.

namespace megalith::ops::cuda {
namespace {

constexpr int kSide = static_cast<int>(kScaleBlock);
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kEach = 8;                // rows and columns of a thread
constexpr int kHalfWarp = kWarp / 2;    // threads across a square
constexpr int kChunks = kSide / kEach;  // 8-byte chunks of a line of codes
static_assert(kHalfWarp * kEach == kSide && kWarps * 2 * kEach == kSide);

/// An operand as the kernel writes it; null values: none.
struct Written {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
  Index stride = 0;  ///< between the rows of scales

  explicit Written(const Operand& operand) {
    if (!operand) return;
    values = pointer<std::uint8_t>(operand.values);
    scales = pointer<float>(operand.scales);
    stride = operand.scales.dim(1);
  }
};

struct QuantiseSizes {
  Index rows, columns, across;  ///< across: squares side by side
  bool is_wide;                 ///< addresses and columns allow vectors of 8 elements of x and of codes
  bool is_turned_wide;          ///< addresses and rows allow vectors of 8 codes of `turned`
};

/// The codes of two numbers, the first in the low byte.
__device__ std::uint32_t codes_of(float first, float second) {
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, __NV_E4M3);
}
/// The conversion makes 448 of an infinity, and kE4m3Nan of a NaN.
__device__ float finite_or_nan(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u ? x : std::numeric_limits<float>::quiet_NaN();
}

/// A thread's 8 x 8 elements of a square from `element` on, as f32. No load waits for another.
template <class T>
__device__ void load_whole(const T* x, Index element, Index columns, Values<float, kEach> (&values)[kEach]) {
  constexpr int kLoads = sizeof(T) * kEach / 16, kOfLoad = kEach / kLoads;
  Pack<T, kOfLoad> packs[kEach][kLoads];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int load = 0; load < kLoads; ++load)
      packs[r][load] = load_pack<kOfLoad>(x, element + r * columns + load * kOfLoad);
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const Values<float, kOfLoad> part = unpack(packs[r][load]);
#pragma unroll
      for (int i = 0; i < kOfLoad; ++i) values[r][load * kOfLoad + i] = part[i];
    }
  }
}

/// The same where only `rows` and `count` columns of the elements exist, or addresses allow no vectors. Others are 0.
template <class T>
__device__ void load_part(const T* x, Index element, Index columns, int rows, int count,
                          Values<float, kEach> (&values)[kEach]) {
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      values[r][c] = r < rows && c < count ? static_cast<float>(x[element + r * columns + c]) : 0.0f;
  }
}

__device__ void store_eight(std::uint8_t* to, uint2 codes, int count, bool is_wide) {
  if (is_wide && count >= kEach) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::uint32_t word = i < 4 ? codes.x : codes.y;
    if (i < count) to[i] = static_cast<std::uint8_t>(word >> (8 * (i % 4)));
  }
}

/// The codes of 8 numbers, value(i) times inverse(i).
template <class Value, class Inverse>
__device__ uint2 eight_codes(const Value& value, const Inverse& inverse) {
  std::uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kEach; i += 2) {
    const std::uint32_t pair =
        codes_of(finite_or_nan(value(i) * inverse(i)), finite_or_nan(value(i + 1) * inverse(i + 1)));
    words[i / 4] |= pair << (8 * (i % 4));
  }
  return {words[0], words[1]};
}

/// The place of a chunk of 8 rows of a column in shared memory.
__device__ int chunk_place(int column, int chunk) { return column * kChunks + (chunk ^ (column / kEach % kChunks)); }

__device__ std::uint32_t max_over_lanes(std::uint32_t value, int from) {
  for (int mask = from; mask > 0; mask /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const T* x, const Written straight, const Written turned, const QuantiseSizes sizes,
                    const ScaleBlocks blocks, const ScaleForm form) {
  __shared__ uint2 chunks[kSide * kChunks];
  __shared__ std::uint32_t warp_column_max[kWarps][kSide];
  __shared__ float column_inverses[kSide];
  const Index square_row = blockIdx.x / sizes.across, square_column = blockIdx.x % sizes.across;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = (2 * warp + lane / kHalfWarp) * kEach, column = lane % kHalfWarp * kEach;  // within the square
  const Index first_row = square_row * kSide, first_column = square_column * kSide;
  const int rows = static_cast<int>(min(Index{kSide}, sizes.rows - first_row)),
            columns = static_cast<int>(min(Index{kSide}, sizes.columns - first_column));

  Values<float, kEach> values[kEach];  // [row][column]
  const Index element = (first_row + row) * sizes.columns + first_column + column;
  if (sizes.is_wide && rows == kSide && columns == kSide)
    load_whole(x, element, sizes.columns, values);
  else
    load_part(x, element, sizes.columns, rows - row, columns - column, values);
  std::uint32_t row_max[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    row_max[r] = 0;
#pragma unroll
    for (int c = 0; c < kEach; ++c) row_max[r] = max(row_max[r], finite_magnitude(values[r][c]));
  }

  float row_inverses[kEach];
  if (blocks == ScaleBlocks::squares) {
    std::uint32_t largest = 0;
#pragma unroll
    for (int r = 0; r < kEach; ++r) largest = max(largest, row_max[r]);
    largest = max_over_lanes(largest, kHalfWarp);
    if (lane == 0) warp_column_max[0][warp] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = max(largest, warp_column_max[0][w]);
    const float scale = block_scale(largest, form), inverse = 1.0f / scale;
#pragma unroll
    for (int r = 0; r < kEach; ++r) row_inverses[r] = inverse;
    if (threadIdx.x < kSide) column_inverses[threadIdx.x] = inverse;
    // The last square of a row of scales also fills it up.
    const auto put = [&](const Written& to, Index line, Index place, Index used) {
      if (to.values == nullptr) return;
      float* const scales = to.scales + line * to.stride;
      if (threadIdx.x == 0) scales[place] = scale;
      if (place + 1 == used && threadIdx.x < to.stride - used) scales[used + threadIdx.x] = 1.0f;
    };
    put(straight, square_row, square_column, sizes.across);
    put(turned, square_column, square_row, (sizes.rows + kSide - 1) / kSide);
  } else {
    if (straight.values != nullptr) {
      // Lane r of a half-warp divides for row r.
      std::uint32_t own_max = 0;
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const std::uint32_t largest = max_over_lanes(row_max[r], kHalfWarp / 2);
        if (lane % kEach == r) own_max = largest;
      }
      const float scale = block_scale(own_max, form), inverse = 1.0f / scale;
      const int own = lane % kHalfWarp;
      if (own < kEach && row + own < rows)
        straight.scales[square_column * straight.stride + first_row + row + own] = scale;
#pragma unroll
      for (int r = 0; r < kEach; ++r) row_inverses[r] = __shfl_sync(0xffffffffu, inverse, r, kHalfWarp);
    }
    if (turned.values != nullptr) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        std::uint32_t largest = 0;
#pragma unroll
        for (int r = 0; r < kEach; ++r) largest = max(largest, finite_magnitude(values[r][c]));
        const std::uint32_t both = max(largest, __shfl_xor_sync(0xffffffffu, largest, kHalfWarp));
        if (lane < kHalfWarp) warp_column_max[warp][column + c] = both;
      }
      __syncthreads();
      if (threadIdx.x < kSide) {
        std::uint32_t largest = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) largest = max(largest, warp_column_max[w][threadIdx.x]);
        const float scale = block_scale(largest, form);
        column_inverses[threadIdx.x] = 1.0f / scale;
        if (threadIdx.x < columns) turned.scales[square_row * turned.stride + first_column + threadIdx.x] = scale;
      }
    }
  }

  if (straight.values != nullptr) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      if (row + r >= rows) break;
      const uint2 codes = eight_codes([&](int i) { return values[r][i]; }, [&](int) { return row_inverses[r]; });
      store_eight(straight.values + (first_row + row + r) * sizes.columns + first_column + column, codes,
                  columns - column, sizes.is_wide);
    }
  }
  if (turned.values == nullptr) return;
  __syncthreads();  // column_inverses
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const float inverse = column_inverses[column + c];
    chunks[chunk_place(column + c, row / kEach)] =
        eight_codes([&](int i) { return values[i][c]; }, [&](int) { return inverse; });
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kSide / (2 * kWarps); ++step) {
    const int line = (step * kWarps + warp) * 2 + lane / kHalfWarp, chunk = lane % kHalfWarp;
    if (line >= columns) break;
    store_eight(turned.values + (first_column + line) * sizes.rows + first_row + chunk * kEach,
                chunks[chunk_place(line, chunk)], rows - chunk * kEach, sizes.is_turned_wide);
  }
}

}  // namespace

void quantise(Stream stream, const Quantise& args) {
  const Index rows = args.x.dim(0), columns = args.x.dim(1), across = ceil_div(columns, kScaleBlock);
  const QuantiseSizes sizes{.rows = rows,
                            .columns = columns,
                            .across = across,
                            .is_wide = columns % kEach == 0 && are_aligned({args.x.raw(), args.straight.values.raw()}),
                            .is_turned_wide = rows % kEach == 0 && is_aligned(args.turned.values.raw())};
  const ScaleBlocks blocks = args.straight ? args.straight.blocks : args.turned.blocks;
  dispatch_element(args.x.dtype(), [&]<class T>() {
    launch({stream, ceil_div(rows, kScaleBlock) * across, kThreads}, quantise_kernel<T>, pointer<const T>(args.x),
           Written(args.straight), Written(args.turned), sizes, blocks, args.form);
  });
}

}  // namespace megalith::ops::cuda
