#pragma once
#include <cuda_fp8.h>

#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/quantise_kernels.h"
#include "megalith/ops/row_parts.h"

// A block of 256 threads takes one square of 128 x 128, which has all blocks of either kind whole. A thread holds 8
// neighbours of 8 consecutive rows in registers: lanes 0 to 15 of warp w have rows 16 w + 0 to 7, lanes 16 to 31 those
// from 16 w + 8 on. So a half-warp loads and stores whole rows of the square. The codes of `turned` cross through
// shared memory, 8 rows of a column per store; its 8-byte chunks are permuted, so that neither side has bank conflicts.
// Reads what a number is made from once, and writes every code once. x * (1 / scale) is one division and one product in
// f32, rounded to nearest even (nvcc's default), and cvt.rn.satfinite.e4m3x2 rounds as e4m3_code() does, for finite
// numbers.

namespace megalith::ops::cuda {

inline constexpr int kSide = static_cast<int>(kScaleBlock);
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kEach = 8;                // rows and columns of a thread
inline constexpr int kHalfWarp = kWarp / 2;    // threads across a square
inline constexpr int kChunks = kSide / kEach;  // 8-byte chunks of a line of codes
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

/// The groups of rows in use; none: all rows are.
struct RowsInUse {
  const std::int32_t *begin = nullptr, *rows = nullptr;
  int count = 0;

  explicit RowsInUse(const GroupRows& groups) {
    if (!groups.begin) return;
    begin = pointer<const std::int32_t>(groups.begin);
    rows = pointer<const std::int32_t>(groups.rows);
    count = static_cast<int>(groups.count());
  }
};

struct QuantiseSizes {
  RowsInUse in_use;
  float* sum_parts;             ///< [squares of rows, columns], of the sums of columns; null: none
  Index rows, columns, across;  ///< across: squares side by side
  bool is_wide;                 ///< addresses and columns allow vectors of 8 elements of x and of codes
  bool is_turned_wide;          ///< addresses and rows allow vectors of 8 codes of `turned`
};

/// 8 neighbours of a row as they are in memory.
template <class T>
struct Eight {
  static constexpr int kLoads = static_cast<int>(sizeof(T)) * kEach / 16, kOfLoad = kEach / kLoads;
  Pack<T, kOfLoad> parts[kLoads];
};
template <class T>
__device__ Eight<T> load_eight(const T* x, Index element) {
  constexpr int kOfLoad = Eight<T>::kOfLoad;
  Eight<T> eight;
#pragma unroll
  for (int i = 0; i < Eight<T>::kLoads; ++i) eight.parts[i] = load_pack<kOfLoad>(x, element + i * kOfLoad);
  return eight;
}
template <class T>
__device__ void store_eight(T* to, Index element, const Eight<T>& eight) {
  constexpr int kOfLoad = Eight<T>::kOfLoad;
#pragma unroll
  for (int i = 0; i < Eight<T>::kLoads; ++i) store_pack(to, element + i * kOfLoad, eight.parts[i]);
}
template <class T>
__device__ Values<float, kEach> numbers_of(const Eight<T>& eight) {
  constexpr int kOfLoad = Eight<T>::kOfLoad;
  Values<float, kEach> numbers;
#pragma unroll
  for (int i = 0; i < Eight<T>::kLoads; ++i) {
    const Values<float, kOfLoad> part = unpack(eight.parts[i]);
#pragma unroll
    for (int k = 0; k < kOfLoad; ++k) numbers[i * kOfLoad + k] = part[k];
  }
  return numbers;
}
/// Rounds to T.
template <class T>
__device__ Eight<T> eight_of(const Values<float, kEach>& numbers) {
  constexpr int kOfLoad = Eight<T>::kOfLoad;
  Eight<T> eight;
#pragma unroll
  for (int i = 0; i < Eight<T>::kLoads; ++i) {
    Values<float, kOfLoad> part;
#pragma unroll
    for (int k = 0; k < kOfLoad; ++k) part[k] = numbers[i * kOfLoad + k];
    eight.parts[i] = pack<T>(part);
  }
  return eight;
}

/// The magnitudes of a thread's numbers, as the bits of f32: the largest of each row and of each column.
struct Largest {
  std::uint32_t of_row[kEach], of_column[kEach];
};

/// The 8 x 8 numbers of a thread, in T: half the registers of f32 for 16-bit types, whose magnitudes are compared two
/// at a time.
template <class T>
struct Held {
  Eight<T> rows[kEach];

  __device__ std::uint32_t word(int row, int i) const {
    if constexpr (sizeof(T) == 2) {
      const uint4& all = rows[row].parts[0].word;
      return i == 0 ? all.x : i == 1 ? all.y : i == 2 ? all.z : all.w;
    } else {
      const uint4& all = rows[row].parts[i / 4].word;
      return i % 4 == 0 ? all.x : i % 4 == 1 ? all.y : i % 4 == 2 ? all.z : all.w;
    }
  }
  __device__ float at(int row, int column) const {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const std::uint32_t pair = word(row, column / 2);
      return __uint_as_float(column % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else if constexpr (sizeof(T) == 2) {
      const std::uint32_t pair = word(row, column / 2);
      return __half2float(__ushort_as_half(static_cast<unsigned short>(column % 2 == 0 ? pair : pair >> 16)));
    } else {
      return __uint_as_float(word(row, column));
    }
  }
  /// The bits of f32 of a magnitude in T.
  static __device__ std::uint32_t widened(std::uint32_t magnitude) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return magnitude << 16;
    else
      return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(magnitude))));
  }
  /// kFinite: numbers that are not finite do not count.
  template <bool kFinite>
  __device__ Largest largest() const {
    Largest all{};
    if constexpr (sizeof(T) == 2) {
      constexpr std::uint32_t kInfinity = std::is_same_v<T, __nv_bfloat16> ? 0x7f807f80u : 0x7c007c00u;
      std::uint32_t of_columns[kEach / 2] = {};
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        std::uint32_t of_row = 0;
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) {
          std::uint32_t magnitudes = word(r, i) & 0x7fff7fffu;
          if constexpr (kFinite) magnitudes &= __vcmpltu2(magnitudes, kInfinity);
          of_row = __vmaxu2(of_row, magnitudes);
          of_columns[i] = __vmaxu2(of_columns[i], magnitudes);
        }
        all.of_row[r] = widened(max(of_row & 0xffffu, of_row >> 16));
      }
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        all.of_column[c] = widened(c % 2 == 0 ? of_columns[c / 2] & 0xffffu : of_columns[c / 2] >> 16);
    } else {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          const std::uint32_t magnitude = kFinite ? finite_magnitude(at(r, c)) : word(r, c) & 0x7fffffffu;
          all.of_row[r] = max(all.of_row[r], magnitude);
          all.of_column[c] = max(all.of_column[c], magnitude);
        }
      }
    }
    return all;
  }
};

// A source makes the numbers of a matrix [R, C], of type Element. `Loaded` has what 8 neighbours of a row are made
// from, as it is in memory: load() reads it, numbers() makes them. one() makes one number alone. With kStores, numbers
// are also stored at `out`, unless that is null. kBlocks: blocks that an SM holds.
// With kGathers, row r is row_of(r) of another matrix of C columns, whose elements load() and one() read, or zeros if
// that is negative; squares for whose first row is_used() is false are left out. Such a matrix is read again for other
// rows, so a launch takes one column of squares after the other: what they read stays in the L2 cache.

/// The codes of two numbers, the first in the low byte.
inline __device__ std::uint32_t codes_of(float first, float second) {
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, __NV_E4M3);
}
/// The conversion makes 448 of an infinity, and kE4m3Nan of a NaN.
inline __device__ float finite_or_nan(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u ? x : std::numeric_limits<float>::quiet_NaN();
}

inline __device__ void store_codes(std::uint8_t* to, uint2 codes, int count, bool is_wide) {
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

/// The codes of 8 numbers, value(i) times inverse. kFinite: all numbers are finite.
template <bool kFinite, class Value>
__device__ uint2 eight_codes(const Value& value, float inverse) {
  const auto scaled = [&](int i) {
    const float x = value(i) * inverse;
    return kFinite ? x : finite_or_nan(x);
  };
  std::uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kEach; i += 2) words[i / 4] |= codes_of(scaled(i), scaled(i + 1)) << (8 * (i % 4));
  return {words[0], words[1]};
}

/// The place of a chunk of 8 rows of a column in shared memory.
inline __device__ int chunk_place(int column, int chunk) {
  return column * kChunks + (chunk ^ (column / kEach % kChunks));
}

inline __device__ std::uint32_t max_over_lanes(std::uint32_t value, int from) {
  for (int mask = from; mask > 0; mask /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

/// A thread's 8 rows, where a source has them.
template <class Source>
struct Lines {
  Index row;                                 ///< the first, of the matrix
  int from[Source::kGathers ? kEach : 1]{};  ///< with kGathers: row_of() of each

  /// All threads of a warp call it. `rows`: of the matrix.
  __device__ Lines(const Source& source, Index first, Index rows) : row(first) {
    if constexpr (Source::kGathers) {
      // Lane r of a half-warp looks up row r.
      const int own = static_cast<int>(threadIdx.x) % kHalfWarp;
      const int found = own < kEach && row + own < rows ? source.row_of(row + own) : -1;
#pragma unroll
      for (int r = 0; r < kEach; ++r) from[r] = __shfl_sync(0xffffffffu, found, r, kHalfWarp);
    }
  }
  __device__ bool is_zero(int r) const { return Source::kGathers && from[Source::kGathers ? r : 0] < 0; }
  __device__ Index element(int r, Index column, Index columns) const {
    return (Source::kGathers ? Index{from[Source::kGathers ? r : 0]} : row + r) * columns + column;
  }
};

/// A thread's 8 x 8 numbers of a square, from `column` on. No load of numbers waits for another.
template <class Source>
__device__ void make_whole(const Source& source, const Lines<Source>& lines, Index column, Index columns,
                           Held<typename Source::Element>& held) {
  typename Source::Loaded loaded[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    if (lines.is_zero(r))
      loaded[r] = {};
    else
      loaded[r] = source.load(lines.element(r, column, columns));
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) held.rows[r] = source.numbers(loaded[r]);
  if constexpr (Source::kStores) {
    if (source.out == nullptr) return;
#pragma unroll
    for (int r = 0; r < kEach; ++r) store_eight(source.out, (lines.row + r) * columns + column, held.rows[r]);
  }
}

/// The same where only `rows` and `count` columns of the numbers exist, or addresses allow no vectors. Others are 0.
template <class Source>
__device__ void make_part(const Source& source, const Lines<Source>& lines, Index column, Index columns, int rows,
                          int count, Held<typename Source::Element>& held) {
  using T = typename Source::Element;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    T numbers[kEach];
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      numbers[c] = convert<T>(0.0f);
      if (r >= rows || c >= count) continue;
      if (!lines.is_zero(r)) numbers[c] = source.one(lines.element(r, column + c, columns));
      if constexpr (Source::kStores) {
        if (source.out != nullptr) source.out[(lines.row + r) * columns + column + c] = numbers[c];
      }
    }
    memcpy(&held.rows[r], numbers, sizeof numbers);
  }
}

/// The rows from `row` on of the group that has it, at most kSide; 0: none has it. All threads of a block call it.
inline __device__ int live_rows_from(const RowsInUse& groups, Index row) {
  __shared__ int live;
  if (threadIdx.x == 0) live = 0;
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < groups.count; g += kThreads) {
    const Index begin = __ldg(groups.begin + g), end = begin + __ldg(groups.rows + g);
    if (begin <= row && row < end) live = static_cast<int>(min(Index{kSide}, end - row));
  }
  __syncthreads();
  return live;
}

/// The sums over a warp's 16 rows of the columns of a square.
template <class T>
__device__ void sum_columns(const Held<T>& held, int column, float (&sums)[kSide]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float4 all{};
    float* const each = &all.x;
#pragma unroll
    for (int c = 0; c < kEach / 2; ++c) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) each[c] += held.at(r, half * kEach / 2 + c);
      each[c] += __shfl_xor_sync(0xffffffffu, each[c], kHalfWarp);
    }
    if (threadIdx.x % kWarp < kHalfWarp) *reinterpret_cast<float4*>(sums + column + half * kEach / 2) = all;
  }
}

template <class Source>
__global__ void __launch_bounds__(kThreads, Source::kBlocks)
    quantise_kernel(const Source source, const Written straight, const Written turned, const QuantiseSizes sizes,
                    const ScaleBlocks blocks, const ScaleForm form) {
  __shared__ __align__(16) uint2 chunks[kSide * kChunks];
  __shared__ std::uint32_t warp_column_max[kWarps][kSide];
  __shared__ float column_inverses[kSide];
  const Index down = (sizes.rows + kSide - 1) / kSide;
  const auto line = static_cast<unsigned>(Source::kGathers ? down : sizes.across);  // squares that follow each other
  const Index quotient = blockIdx.x / line, rest = blockIdx.x % line;
  const Index square_row = Source::kGathers ? rest : quotient, square_column = Source::kGathers ? quotient : rest;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = (2 * warp + lane / kHalfWarp) * kEach, column = lane % kHalfWarp * kEach;  // within the square
  const Index first_row = square_row * kSide, first_column = square_column * kSide;
  const int rows = static_cast<int>(min(Index{kSide}, sizes.rows - first_row)),
            columns = static_cast<int>(min(Index{kSide}, sizes.columns - first_column));

  int live = rows;
  if constexpr (Source::kGathers) {
    if (!source.is_used(first_row)) return;
  } else if (sizes.in_use.count > 0) {
    live = min(rows, live_rows_from(sizes.in_use, first_row));
    if (live == 0) return;
  }
  const Lines<Source> lines(source, first_row + row, sizes.rows);
  Held<typename Source::Element> held;
  if (sizes.is_wide && live == kSide && columns == kSide)
    make_whole(source, lines, first_column + column, sizes.columns, held);
  else
    make_part(source, lines, first_column + column, sizes.columns, live - row, columns - column, held);
  Largest largest_here = held.template largest<false>();
  std::uint32_t largest_of_all = 0;
#pragma unroll
  for (int r = 0; r < kEach; ++r) largest_of_all = max(largest_of_all, largest_here.of_row[r]);
  auto& warp_sums = *reinterpret_cast<float(*)[kWarps][kSide]>(&chunks);  // until codes are written there
  static_assert(sizeof warp_sums <= sizeof chunks);
  if (sizes.sum_parts != nullptr) sum_columns(held, column, warp_sums[warp]);
  const bool is_finite = __syncthreads_or(largest_of_all >= 0x7f800000u) == 0;
  if (sizes.sum_parts != nullptr && static_cast<int>(threadIdx.x) < columns) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w][threadIdx.x];
    sizes.sum_parts[square_row * sizes.columns + first_column + threadIdx.x] = sum;
  }
  if (!is_finite) largest_here = held.template largest<true>();

  float row_inverses[kEach];
  if (blocks == ScaleBlocks::squares) {
    std::uint32_t largest = 0;
#pragma unroll
    for (int r = 0; r < kEach; ++r) largest = max(largest, largest_here.of_row[r]);
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
    put(turned, square_column, square_row, down);
  } else {
    if (straight.values != nullptr) {
      // Lane r of a half-warp divides for row r.
      std::uint32_t own_max = 0;
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const std::uint32_t largest = max_over_lanes(largest_here.of_row[r], kHalfWarp / 2);
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
        const std::uint32_t largest = largest_here.of_column[c],
                            both = max(largest, __shfl_xor_sync(0xffffffffu, largest, kHalfWarp));
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

  if (turned.values != nullptr) __syncthreads();  // column_inverses
  const auto put_codes = [&]<bool kFinite>() {
    if (straight.values != nullptr) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        if (row + r >= rows) break;
        const uint2 codes = eight_codes<kFinite>([&](int i) { return held.at(r, i); }, row_inverses[r]);
        store_codes(straight.values + (first_row + row + r) * sizes.columns + first_column + column, codes,
                    columns - column, sizes.is_wide);
      }
    }
    if (turned.values == nullptr) return;
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      chunks[chunk_place(column + c, row / kEach)] =
          eight_codes<kFinite>([&](int i) { return held.at(i, c); }, column_inverses[column + c]);
  };
  if (is_finite)
    put_codes.template operator()<true>();
  else
    put_codes.template operator()<false>();
  if (turned.values == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kSide / (2 * kWarps); ++step) {
    const int line = (step * kWarps + warp) * 2 + lane / kHalfWarp, chunk = lane % kHalfWarp;
    if (line >= columns) break;
    store_codes(turned.values + (first_column + line) * sizes.rows + first_row + chunk * kEach,
                chunks[chunk_place(line, chunk)], rows - chunk * kEach, sizes.is_turned_wide);
  }
}

/// Where the sums of columns go: added to `sums` [columns], with parts as scratch. Both are undefined for none.
struct ColumnSums {
  Tensor sums = {}, parts = {};
};

/// Launches the kernel over the squares of a matrix [rows, columns]. `addresses` are those that the source accesses.
template <class Source>
void quantise_from(Stream stream, const Source& source, Index rows, Index columns, const Operand& straight,
                   const Operand& turned, ScaleForm form, const GroupRows& groups,
                   std::initializer_list<const void*> addresses, const ColumnSums& column_sums = {}) {
  const Index across = ceil_div(columns, kScaleBlock);
  const QuantiseSizes sizes{
      .in_use = RowsInUse(groups),
      .sum_parts = column_sums.parts ? pointer<float>(column_sums.parts) : nullptr,
      .rows = rows,
      .columns = columns,
      .across = across,
      .is_wide = columns % kEach == 0 && are_aligned(addresses) && is_aligned(straight.values.raw()),
      .is_turned_wide = rows % kEach == 0 && is_aligned(turned.values.raw())};
  const ScaleBlocks blocks = straight ? straight.blocks : turned.blocks;
  launch({stream, ceil_div(rows, kScaleBlock) * across, kThreads}, quantise_kernel<Source>, source, Written(straight),
         Written(turned), sizes, blocks, form);
  if (column_sums.parts)
    add_parts(stream, sizes.sum_parts, column_sums.parts.dim(0), columns, {pointer<float>(column_sums.sums)});
}

}  // namespace megalith::ops::cuda
