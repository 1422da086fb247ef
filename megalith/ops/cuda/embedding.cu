#include "megalith/ops/cuda/map.cuh"
#include "megalith/ops/embedding_kernels.h"

namespace megalith::ops::cuda {
namespace {

/// out = the id's row, 0 for an id that is not held: an op of the map kernel. 2 elements and 4 bytes per row moved.
/// 32768 rows of 768 bf16 take 28 us on an H200, 73 % of a copy's rate (repeated rows counted once).
template <class T>
struct Gather {
  const T* table;
  const std::int32_t* ids;
  Index first_id, held, hidden;

  template <int N>
  __device__ void operator()(const Place& place, const Values<float, N>*, Values<float, N>* out) const {
    const Index id = ids[place.row] - first_id;
    out[0] = {};
    if (id >= 0 && id < held) out[0] = unpack(load_pack<N>(table, id * hidden + place.column));
  }
};

/// out = dropout(x + the row's position): an op of the map kernel. 3 elements moved, one of them from the cache: 33 us,
/// 74 %.
template <class T>
struct PositionDropout {
  const T* table;  // position [seq_len, hidden]
  Index first_row, seq_len, hidden;
  DropoutKeys dropout;

  template <int N>
  __device__ void operator()(const Place& place, const Values<float, N>* in, Values<float, N>* out) const {
    const Index position = (first_row + place.row) % seq_len;
    out[0] = Plus{}(in[0], unpack(load_pack<N>(table, position * hidden + place.column)));
    dropout.apply(out[0], place.element);
  }
};

/// grad += dy[0] + dy[1] + ... over the samples: an op of the map kernel over [S * H]. One element of dy per sample, 8
/// bytes of gradient moved: 28 us, 48 %.
template <class T>
struct AddSamples {
  const T* table;  // dy [samples, stride]
  Index samples, stride;

  template <int N>
  __device__ void operator()(const Place& place, const Values<float, N>* in, Values<float, N>* out) const {
    out[0] = in[0];
#pragma unroll 8
    for (Index b = 0; b < samples; ++b) out[0] = Plus{}(out[0], unpack(load_pack<N>(table, b * stride + place.column)));
  }
};

// ---- The sum over the tokens of each id ----
//
// Held tokens are sorted by (id, t). They are counted into buckets, which keep their tokens in order of arrival. Then
// each token is ranked within its bucket by comparing it with the others. For a frequent id, a block instead collects
// the tokens in their order. Windows of the sorted list are summed in order. Last come the sums that cross from one
// window into the next. Only integers are added by atomics, and the ranking removes the order of arrival. In all: 32768
// rows of 768 bf16, random ids of 50304, on an H200 in 100 us, 47 % of a copy's rate.

constexpr int kWindow = static_cast<int>(EmbeddingScratch::kWindow);
constexpr int kTokenThreads = 256;
constexpr Index kLargeBucket = EmbeddingScratch::kLargeBucket;

/// The sort's lists; see EmbeddingScratch.
struct Buckets {
  const std::int32_t* ids;
  Index first_id, held, tokens;
  std::int32_t *starts, *slots, *buckets, *sorted, *large;

  /// -1 for an id that is not held.
  __device__ Index id_of(Index t) const {
    const Index id = ids[t] - first_id;
    return id >= 0 && id < held ? id : -1;
  }
  __device__ Index thread_token() const { return blockIdx.x * Index{kTokenThreads} + threadIdx.x; }
  __device__ Index num_held() const { return starts[held]; }
};

/// A thread takes a token: 12 bytes.
__global__ void __launch_bounds__(kTokenThreads) count_kernel(const Buckets lists) {
  const Index t = lists.thread_token();
  if (t >= lists.tokens) return;
  const Index id = lists.id_of(t);
  if (id >= 0) lists.slots[t] = atomicAdd(lists.starts + id, 1);
}

/// One block turns counts [held] into starts [held + 1] and lists the large buckets. A warp takes one stretch of them,
/// 32 at a time. Reads each count twice.
__global__ void __launch_bounds__(kMaxThreads) scan_kernel(const Buckets lists) {
  __shared__ std::int32_t totals[kMaxWarps];
  __shared__ std::int32_t num_large;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) num_large = 0;
  const Index stretch = round_up(ceil_div(lists.held, kMaxWarps), kWarp);
  const Index begin = warp * stretch, end = min(lists.held, begin + stretch);
  std::int32_t total = 0;
#pragma unroll 8
  for (Index i = begin + lane; i < end; i += kWarp) total += lists.starts[i];
  total = __reduce_add_sync(0xffffffffu, total);
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  std::int32_t before = 0;
  for (int i = 0; i < warp; ++i) before += totals[i];
  for (Index first = begin; first < end; first += kWarp) {
    const std::int32_t count = first + lane < end ? lists.starts[first + lane] : 0;
    if (count > kLargeBucket) lists.large[1 + atomicAdd(&num_large, 1)] = static_cast<std::int32_t>(first + lane);
    std::int32_t sum = count;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += other;
    }
    if (first + lane < end) lists.starts[first + lane] = before + sum - count;
    before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
  }
  if (warp == kMaxWarps - 1 && lane == 0) lists.starts[lists.held] = before;
  __syncthreads();
  if (threadIdx.x == 0) lists.large[0] = num_large;
}

/// A thread takes a token: 20 bytes.
__global__ void __launch_bounds__(kTokenThreads) scatter_kernel(const Buckets lists) {
  const Index t = lists.thread_token();
  if (t >= lists.tokens) return;
  const Index id = lists.id_of(t);
  if (id >= 0) lists.buckets[lists.starts[id] + lists.slots[t]] = static_cast<std::int32_t>(t);
}

/// A thread takes a place in the buckets that are not large and counts the earlier tokens of its id, which its
/// neighbours read too.
__global__ void __launch_bounds__(kTokenThreads) rank_kernel(const Buckets lists) {
  const Index place = lists.thread_token();
  if (place >= lists.num_held()) return;
  const std::int32_t t = lists.buckets[place];
  const Index id = lists.id_of(t), begin = lists.starts[id], end = lists.starts[id + 1];
  if (end - begin > kLargeBucket) return;
  Index rank = 0;
#pragma unroll 8
  for (Index i = begin; i < end; ++i) rank += lists.buckets[i] < t ? 1 : 0;
  lists.sorted[begin + rank] = t;
}

/// A block takes large buckets in turn and collects each id's tokens in ascending order. A round reads kMaxThreads *
/// kPerThread tokens, 32 neighbours per warp at a time. Reads all ids once per large bucket, mostly from the cache;
/// there are at most tokens / kLargeBucket of these.
__global__ void __launch_bounds__(kMaxThreads) collect_kernel(const Buckets lists) {
  constexpr int kPerThread = 4;
  __shared__ std::int32_t counts[kMaxWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned lower = (1u << lane) - 1;
  for (int which = static_cast<int>(blockIdx.x); which < lists.large[0]; which += static_cast<int>(gridDim.x)) {
    const Index id = lists.large[1 + which];
    std::int32_t* to = lists.sorted + lists.starts[id];
    for (Index first = 0; first < lists.tokens; first += kMaxThreads * kPerThread) {
      const Index begin = first + warp * (kWarp * kPerThread) + lane;
      unsigned found[kPerThread];
      std::int32_t mine = 0;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const Index t = begin + i * kWarp;
        found[i] = __ballot_sync(0xffffffffu, t < lists.tokens && lists.id_of(t) == id);
        mine += __popc(found[i]);
      }
      __syncthreads();  // all have read the counts of the previous round
      if (lane == 0) counts[warp] = mine;
      __syncthreads();
      std::int32_t before = 0, all = 0;
      for (int i = 0; i < kMaxWarps; ++i) {
        before += i < warp ? counts[i] : 0;
        all += counts[i];
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if ((found[i] >> lane & 1u) != 0)
          to[before + __popc(found[i] & lower)] = static_cast<std::int32_t>(begin + i * kWarp);
        before += __popc(found[i]);
      }
      to += all;
    }
  }
}

constexpr int kSumThreads = 256;
constexpr int kSumWidth = 4;  // columns of a thread: the gradient's 16 bytes

/// Rows of `hidden` columns in blocks of N columns per thread, `tiles` blocks per row.
struct RowTiles {
  Index hidden;
  unsigned tiles, threads;

  RowTiles(Index columns, int width) : hidden(columns) {
    const Index vectors = ceil_div(columns, width);
    tiles = static_cast<unsigned>(ceil_div(vectors, kSumThreads));
    threads = static_cast<unsigned>(ceil_div(vectors, std::max<Index>(tiles, 1)));
  }
  __device__ Index window() const { return blockIdx.x / tiles; }
  template <int N>
  __device__ Index column() const {
    return Index{blockIdx.x % tiles * blockDim.x + threadIdx.x} * N;
  }
};

template <int N>
__device__ void add_to(float* table_grad, Index element, const Values<float, N>& sum) {
  store_pack(table_grad, element, pack<float>(Plus{}(unpack(load_pack<N>(table_grad, element)), sum)));
}

/// A block walks a window of the sorted list, a thread N columns of it. The sum of an id that lies wholly in the window
/// is added to the table. That of an id from the window before goes to sums[window, 0], that of one that continues in
/// the next to sums[window, 1]. Reads dy once, moves 8 bytes per id and column.
template <int N, class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_windows_kernel(const Buckets lists, const T* dy, float* table_grad, float* sums, const RowTiles row_tiles) {
  constexpr int kUnroll = 8;
  __shared__ std::int32_t tokens[kWindow];
  const Index window = row_tiles.window(), begin = window * kWindow, hidden = row_tiles.hidden;
  const int count = static_cast<int>(min(Index{kWindow}, lists.num_held() - begin));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    tokens[i] = lists.sorted[begin + i];
  }
  __syncthreads();
  const Index column = row_tiles.column<N>();
  if (count <= 0 || column >= hidden) return;

  Values<float, N> sum{};
  Index id = lists.id_of(tokens[0]), id_end = lists.starts[id + 1];
  const auto put = [&] {
    if (lists.starts[id] < begin) {
      store_pack(sums, 2 * window * hidden + column, pack<float>(sum));
    } else if (id_end > begin + count) {
      store_pack(sums, (2 * window + 1) * hidden + column, pack<float>(sum));
    } else {
      add_to(table_grad, id * hidden + column, sum);
    }
  };
  for (int first = 0; first < count; first += kUnroll) {
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      packs[i] = load_pack<N>(dy, tokens[min(first + i, count - 1)] * hidden + column);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i >= count) break;
      if (begin + first + i == id_end) {
        put();
        sum = {};
        id = lists.id_of(tokens[first + i]);
        id_end = lists.starts[id + 1];
      }
      sum = Plus{}(sum, unpack(packs[i]));
    }
  }
  put();
}

/// A block adds up, in order, the windows' sums of the id that starts in its own and continues. Moves 4 bytes per
/// window and column, 8 per id and column.
template <int N>
__global__ void __launch_bounds__(kSumThreads)
    join_windows_kernel(const Buckets lists, const float* sums, float* table_grad, const RowTiles row_tiles) {
  const Index window = row_tiles.window(), begin = window * kWindow, end = begin + kWindow;
  const Index column = row_tiles.column<N>(), hidden = row_tiles.hidden;
  if (end >= lists.num_held() || column >= hidden) return;
  const Index id = lists.id_of(lists.sorted[end - 1]), id_end = lists.starts[id + 1];
  if (lists.starts[id] < begin || id_end <= end) return;
  Values<float, N> sum = unpack(load_pack<N>(sums, (2 * window + 1) * hidden + column));
#pragma unroll 8
  for (Index next = window + 1; next * kWindow < id_end; ++next) {
    sum = Plus{}(sum, unpack(load_pack<N>(sums, 2 * next * hidden + column)));
  }
  add_to(table_grad, id * hidden + column, sum);
}

}  // namespace

void embedding_forward(Stream stream, const EmbeddingForward& args) {
  const Index hidden = args.table.dim(1);
  dispatch_element(args.table.dtype(), [&]<class T>() {
    const Gather<T> gather{.table = pointer<const T>(args.table),
                           .ids = pointer<const std::int32_t>(args.ids),
                           .first_id = args.first_id,
                           .held = args.table.dim(0),
                           .hidden = hidden};
    map(stream, Matrix{args.ids.numel(), hidden}, std::array<const T*, 0>{}, std::array{pointer<T>(args.y)}, gather);
  });
}

void embedding_backward(Stream stream, const EmbeddingBackward& args, const Tensor& scratch) {
  const Index tokens = args.dy.dim(0), held = args.table_grad.dim(0), hidden = args.dy.dim(1);
  if (tokens == 0 || held == 0 || hidden == 0) return;
  const EmbeddingScratch places(tokens, held, hidden);
  const auto list = [&](Index offset) { return reinterpret_cast<std::int32_t*>(pointer<std::byte>(scratch) + offset); };
  const Buckets lists{.ids = pointer<const std::int32_t>(args.ids),
                      .first_id = args.first_id,
                      .held = held,
                      .tokens = tokens,
                      .starts = list(places.starts),
                      .slots = list(places.slots),
                      .buckets = list(places.buckets),
                      .sorted = list(places.sorted),
                      .large = list(places.large)};
  megalith::cuda::check(cudaMemsetAsync(lists.starts, 0, sizeof(std::int32_t) * static_cast<std::size_t>(held + 1),
                                        megalith::cuda::native(stream)));
  const Index blocks = ceil_div(tokens, kTokenThreads);
  launch({stream, blocks, kTokenThreads}, count_kernel, lists);
  launch({stream, 1, kMaxThreads}, scan_kernel, lists);
  launch({stream, blocks, kTokenThreads}, scatter_kernel, lists);
  launch({stream, blocks, kTokenThreads}, rank_kernel, lists);
  launch({stream, tokens / kLargeBucket, kMaxThreads}, collect_kernel, lists);

  auto* sums = reinterpret_cast<float*>(list(places.sums));
  auto* table_grad = pointer<float>(args.table_grad);
  const Index windows = ceil_div(tokens, kWindow);
  dispatch_element(args.dy.dtype(), [&]<class T>() {
    const auto* dy = pointer<const T>(args.dy);
    const auto run = [&]<int N>() {
      const RowTiles row_tiles(hidden, N);
      launch({stream, windows * row_tiles.tiles, row_tiles.threads}, sum_windows_kernel<N, T>, lists, dy, table_grad,
             sums, row_tiles);
      launch({stream, windows * row_tiles.tiles, row_tiles.threads}, join_windows_kernel<N>, lists, sums, table_grad,
             row_tiles);
    };
    if (are_aligned({dy, table_grad, sums}) && hidden % kSumWidth == 0) {
      run.template operator()<kSumWidth>();
    } else {
      run.template operator()<1>();
    }
  });
}

void add_position(Stream stream, const AddPosition& args) {
  const Index seq_len = args.position.dim(0), hidden = args.position.dim(1);
  Dropout dropout = args.dropout;
  dropout.seq_len = seq_len;
  dispatch_element(args.x.dtype(), [&]<class T>() {
    const PositionDropout<T> op{.table = pointer<const T>(args.position),
                                .first_row = dropout.first_row,
                                .seq_len = seq_len,
                                .hidden = hidden,
                                .dropout = DropoutKeys(dropout, hidden)};
    map(stream, Matrix{args.x.dim(0), hidden}, std::array{pointer<const T>(args.x)}, std::array{pointer<T>(args.y)},
        op);
  });
}

void position_backward(Stream stream, const Tensor& dy, const Tensor& position_grad) {
  const Index row = position_grad.numel();
  if (row == 0) return;
  dispatch_element(dy.dtype(), [&]<class T>() {
    map(stream, Flat{row}, std::array{pointer<const float>(position_grad)}, std::array{pointer<float>(position_grad)},
        AddSamples<T>{.table = pointer<const T>(dy), .samples = dy.numel() / row, .stride = row});
  });
}

}  // namespace megalith::ops::cuda
