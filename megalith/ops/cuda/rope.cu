#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/rope_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread computes one pair's cosine and sine of one position. The table is made once, so its speed does not matter.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_table_kernel(const RopeFrequencies frequencies, T* table, Index positions, Index half) {
  const Index at = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (at >= positions * half) return;
  const Index position = at / half, i = at % half;
  double sine = 0, cosine = 0;
  sincos(static_cast<double>(position) * frequencies.of(i), &sine, &cosine);
  table[position * 2 * half + i] = static_cast<T>(cosine);
  table[(position * 2 + 1) * half + i] = static_cast<T>(sine);
}

/// A Rope as the kernel takes it.
struct Turn {
  Index rows, columns;
  Index seq_len, first_row, start_position;
  const std::int32_t* positions;  // null: computed from the numbers above
  int half, turned;               // heads of a group that turn: its q heads and its k
  int groups;
  int vectors;  // vectors of N pairs each in a row
  float direction;
  /// The position of a row.
  __device__ Index position(Index row) const {
    if (positions != nullptr) return Index{__ldg(positions + row)};
    return start_position + static_cast<unsigned>(first_row + row) % static_cast<unsigned>(seq_len);
  }
};

/// Rows in flight per thread: 64 bytes of q and k with wide accesses.
template <int N>
constexpr int kRows = N == 8 ? 2 : 4;

/// N neighbouring numbers of the table.
template <int N>
__device__ Values<float, N> load_angles(const float* table, Index at) {
  constexpr int kPart = N < 4 ? N : 4;
  Values<float, N> angles;
#pragma unroll
  for (int part = 0; part < N; part += kPart) {
    const Values<float, kPart> some = unpack(load_pack<kPart>(table, at + part));
#pragma unroll
    for (int i = 0; i < kPart; ++i) angles[part + i] = some[i];
  }
  return angles;
}

/// (x, y) = (a cos - b sin, b cos + a sin), with the sine times `direction`.
template <int N>
__device__ void rotate(const Values<float, N>& a, const Values<float, N>& b, const Values<float, N>& cosine,
                       const Values<float, N>& sine, float direction, Values<float, N>& x, Values<float, N>& y) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float turned_sine = sine[i] * direction;
    x[i] = a[i] * cosine[i] - b[i] * turned_sine;
    y[i] = b[i] * cosine[i] + a[i] * turned_sine;
  }
}

/// A thread turns N neighbouring pairs of one head in kRows rows, and computes their place in a row once. Moves 2
/// elements of q and k. The table's rows, 4 bytes per element, are read from the cache by all heads but the first.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(T* qkv, const float* table, const Turn turn) {
  const unsigned at = blockIdx.x * kThreads + threadIdx.x, vectors = static_cast<unsigned>(turn.vectors);
  const Index first = Index{at / vectors} * kRows<N>;
  if (first >= turn.rows) return;
  const unsigned of_head = static_cast<unsigned>(turn.half / N), vector = at % vectors, head = vector / of_head;
  const unsigned group = head / static_cast<unsigned>(turn.turned);
  const int pair = static_cast<int>(vector % of_head) * N;
  const Index column = Index{head + group} * 2 * turn.half + pair;  // a v follows the heads of each group
  Pack<T, N> low[kRows<N>], high[kRows<N>];
  Values<float, N> cosine[kRows<N>], sine[kRows<N>];
#pragma unroll
  for (int r = 0; r < kRows<N>; ++r) {
    const Index row = min(first + r, turn.rows - 1), element = row * turn.columns + column;
    low[r] = load_pack<N>(qkv, element);
    high[r] = load_pack<N>(qkv, element + turn.half);
    const Index angles = turn.position(row) * 2 * turn.half + pair;
    cosine[r] = load_angles<N>(table, angles);
    sine[r] = load_angles<N>(table, angles + turn.half);
  }
#pragma unroll
  for (int r = 0; r < kRows<N>; ++r) {
    if (first + r >= turn.rows) break;
    const Values<float, N> a = unpack(low[r]), b = unpack(high[r]);
    Values<float, N> x, y;
    rotate(a, b, cosine[r], sine[r], turn.direction, x, y);
    const Index element = (first + r) * turn.columns + column;
    store_pack(qkv, element, pack<T>(x));
    store_pack(qkv, element + turn.half, pack<T>(y));
  }
}

/// A block turns whole rows, and its heads change places: it has read all of a row before it writes. A thread has N
/// neighbouring pairs of one head. Moves 2 elements of qkv, v included.
template <int N, class T>
__global__ void __launch_bounds__(1024) rope_to_parts_kernel(T* qkv, const float* table, const Turn turn) {
  const unsigned vectors = static_cast<unsigned>(turn.vectors), of_head = static_cast<unsigned>(turn.half / N);
  const Index row = Index{blockIdx.x} * (blockDim.x / vectors) + threadIdx.x / vectors;
  const bool has_row = threadIdx.x < blockDim.x / vectors * vectors && row < turn.rows;
  const unsigned vector = threadIdx.x % vectors, head = vector / of_head;
  const int pair = static_cast<int>(vector % of_head) * N, head_dim = 2 * turn.half;
  const Index in_parts = place_in_parts(head, turn.turned - 1, turn.groups) * head_dim + pair;
  const Index in_groups = Index{head} * head_dim + pair, first = row * turn.columns;
  const bool is_forward = turn.direction > 0;
  Values<float, N> a, b;
  if (has_row) {
    const Index from = first + (is_forward ? in_groups : in_parts);
    a = unpack(load_pack<N>(qkv, from));
    b = unpack(load_pack<N>(qkv, from + turn.half));
    if (head % static_cast<unsigned>(turn.turned + 1) < static_cast<unsigned>(turn.turned)) {  // not a v
      const Index angles = turn.position(row) * head_dim + pair;
      const Values<float, N> at_a = a, at_b = b;
      rotate(at_a, at_b, load_angles<N>(table, angles), load_angles<N>(table, angles + turn.half), turn.direction, a,
             b);
    }
  }
  __syncthreads();
  if (!has_row) return;
  const Index to = first + (is_forward ? in_parts : in_groups);
  store_pack(qkv, to, pack<T>(a));
  store_pack(qkv, to + turn.half, pack<T>(b));
}

}  // namespace

void rope_table(Stream stream, const RopeFrequencies& frequencies, const Tensor& table) {
  const Index positions = table.dim(0), half = table.dim(2);
  const auto run = [&]<class T>() {
    launch({stream, ceil_div(positions * half, kThreads), kThreads}, rope_table_kernel<T>, frequencies,
           pointer<T>(table), positions, half);
  };
  if (table.dtype() == DType::f64) return run.template operator()<double>();
  run.template operator()<float>();
}

void rope(Stream stream, const Rope& args) {
  const Index half = args.table.dim(2), turned = args.num_heads / args.num_kv_heads + 1;
  Turn turn{.rows = args.qkv.dim(0),
            .columns = args.qkv.dim(1),
            .seq_len = args.seq_len,
            .first_row = args.first_row,
            .start_position = args.start_position,
            .positions = pointer<const std::int32_t>(args.positions),
            .half = static_cast<int>(half),
            .turned = static_cast<int>(turned),
            .groups = static_cast<int>(args.num_kv_heads),
            .vectors = 0,
            .direction = args.direction == RopeDirection::forward ? 1.0f : -1.0f};
  if (args.attended == QkvOrder::parts) {
    constexpr int N = 8;
    turn.vectors = static_cast<int>(turn.columns / (2 * N));
    const Index rows_of_block = std::max(Index{1}, Index{kThreads} / turn.vectors);
    const auto threads = static_cast<unsigned>(round_up(rows_of_block * turn.vectors, kWarp));
    return dispatch_element(args.qkv.dtype(), [&]<class T>() {
      if constexpr (sizeof(T) == 2) {  // can_reorder()
        launch({stream, ceil_div(turn.rows, rows_of_block), threads}, rope_to_parts_kernel<N, T>, pointer<T>(args.qkv),
               pointer<const float>(args.table), turn);
      }
    });
  }
  dispatch_element(args.qkv.dtype(), [&]<class T>() {
    const auto run = [&]<int N>() {
      turn.vectors = static_cast<int>(args.num_kv_heads * turned * half / N);
      launch({stream, ceil_div(ceil_div(turn.rows, kRows<N>) * turn.vectors, kThreads), kThreads}, rope_kernel<N, T>,
             pointer<T>(args.qkv), pointer<const float>(args.table), turn);
    };
    if (half % kPack<T> == 0 && are_aligned({args.qkv.raw(), args.table.raw()}))
      return run.template operator()<kPack<T>>();
    run.template operator()<1>();
  });
}

}  // namespace megalith::ops::cuda
