#pragma once
#include <algorithm>
#include <array>

#include "megalith/ops/cuda/common.cuh"

// One kernel for all element-wise ops. An op computes N neighbours.

namespace megalith::ops::cuda {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapUnroll = 4;  // vectors in flight per thread and tensor: 64 bytes

/// The first of N neighbours in [rows, columns]; element = row * columns + column.
struct Place {
  Index row, column, element;
};

/// The tiling of [rows, columns]. A block takes a tile, a thread kMapUnroll vectors of it, each one step from the last.
struct Tiling {
  Index rows, columns;
  Index tile_rows, tile_columns, row_step, column_step;
  unsigned column_tiles;
  dim3 threads;

  Index blocks() const { return columns == 0 ? 0 : ceil_div(rows, tile_rows) * column_tiles; }
  template <int N>
  __device__ Place place(int step) const {
    const Index row = blockIdx.x / column_tiles * tile_rows + threadIdx.y + step * row_step;
    const Index column = blockIdx.x % column_tiles * tile_columns + Index{threadIdx.x} * N + step * column_step;
    return {row, column, row * columns + column};
  }
  __device__ bool has(const Place& place) const { return place.row < rows && place.column < columns; }
};

/// For ops that use the row or the column, or draw random numbers. The threads of a block lie side by side for the
/// length of a row, the others below them. The steps go down.
struct Matrix {
  Index rows, columns;

  Tiling tiling(int width) const {
    const Index vectors = std::max<Index>(columns / width, 1), tiles = ceil_div(vectors, kMapThreads);
    const Index across = ceil_div(vectors, tiles), down = kMapThreads / across;
    return {.rows = rows,
            .columns = columns,
            .tile_rows = down * kMapUnroll,
            .tile_columns = across * width,
            .row_step = down,
            .column_step = 0,
            .column_tiles = static_cast<unsigned>(tiles),
            .threads = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down))};
  }
};

/// For ops that treat all elements alike: one long row. The steps go right.
struct Flat {
  Index columns;

  Tiling tiling(int width) const {
    const Index step = Index{kMapThreads} * width, tile = step * kMapUnroll;
    return {.rows = 1,
            .columns = columns,
            .tile_rows = 1,
            .tile_columns = tile,
            .row_step = 0,
            .column_step = step,
            .column_tiles = static_cast<unsigned>(ceil_div(columns, tile)),
            .threads = dim3(kMapThreads)};
  }
};

/// The tensors of a map; an output may be an input.
template <class In, std::size_t kInputs, class Out, std::size_t kOutputs>
struct Streams {
  std::array<const In*, kInputs> in;
  std::array<Out*, kOutputs> out;
};

/// The type in which ops compute.
template <class In, class Out>
using Arithmetic = std::conditional_t<std::is_same_v<In, double> || std::is_same_v<Out, double>, double, float>;

/// A block takes a tile, a thread kMapUnroll vectors of N elements: all are loaded, then each is computed and stored.
/// Reads every input and writes every output once.
template <int N, class In, std::size_t kInputs, class Out, std::size_t kOutputs, class Op>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(const Streams<In, kInputs, Out, kOutputs> streams, const Tiling tiling, const Op op) {
  using V = Arithmetic<In, Out>;
  constexpr std::size_t kSome = kInputs > 0 ? kInputs : 1;
  Pack<In, N> loaded[kMapUnroll][kSome];
#pragma unroll
  for (int step = 0; step < kMapUnroll; ++step) {
    const Place place = tiling.place<N>(step);
    // Outside the tensor the first vector is read. A load in a branch would cost bf16 a register for every number.
    const Index element = tiling.has(place) ? place.element : 0;
#pragma unroll
    for (std::size_t i = 0; i != kInputs; ++i) loaded[step][i] = load_pack<N>(streams.in[i], element);
  }
#pragma unroll
  for (int step = 0; step < kMapUnroll; ++step) {
    const Place place = tiling.place<N>(step);
    if (!tiling.has(place)) break;
    Values<V, N> in[kSome], out[kOutputs];
#pragma unroll
    for (std::size_t i = 0; i != kInputs; ++i) in[i] = unpack<V>(loaded[step][i]);
    op(place, in, out);
#pragma unroll
    for (std::size_t i = 0; i != kOutputs; ++i) store_pack(streams.out[i], place.element, pack<Out>(out[i]));
  }
}

/// Runs op(place, in, out) over an extent (Matrix or Flat). The op turns kInputs Values into kOutputs. An op that reads
/// a table of its own has a member `table`, aligned like the streams or null.
template <class Extent, class In, std::size_t kInputs, class Out, std::size_t kOutputs, class Op>
void map(Stream stream, const Extent& extent, const std::array<const In*, kInputs>& in,
         const std::array<Out*, kOutputs>& out, const Op& op) {
  constexpr int kWidth = std::min(kPack<In>, kPack<Out>);
  bool aligned = std::all_of(in.begin(), in.end(), is_aligned) && std::all_of(out.begin(), out.end(), is_aligned);
  if constexpr (requires { op.table; }) aligned = aligned && is_aligned(op.table);
  const auto run = [&]<int N>() {
    const Tiling tiling = extent.tiling(N);
    launch({stream, tiling.blocks(), tiling.threads}, map_kernel<N, In, kInputs, Out, kOutputs, Op>,
           Streams<In, kInputs, Out, kOutputs>{in, out}, tiling, op);
  };
  if (aligned && extent.columns % kWidth == 0) {
    run.template operator()<kWidth>();
  } else {
    run.template operator()<1>();
  }
}

}  // namespace megalith::ops::cuda
