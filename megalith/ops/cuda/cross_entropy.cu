#include <algorithm>
#include <cfloat>
#include <cmath>

#include "megalith/ops/cuda/cross_entropy.h"
#include "megalith/ops/cuda/map.cuh"

// A block takes a row of logits. Rows are walked in aligned vectors of 16 bytes wherever they start: the first and the
// last vector of a row may belong to it only in part.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // vectors in flight per thread

/// e^x. One instruction and a multiplication for the types that round the result away; exact for f32.
template <class T>
__device__ float exp_of(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return exp2_approx(x * kLog2E);
  }
}

/// Row `row` of logits [T, columns], of which the first `real` are words and the rest is padding.
template <class T>
class LogitsRow {
 public:
  static constexpr int kN = kPack<T>;

  __device__ LogitsRow(T* logits, Index row, int columns, int real) : columns_(columns), real_(real) {
    T* start = logits + row * columns;
    shift_ = static_cast<int>(reinterpret_cast<std::uintptr_t>(start) % 16 / sizeof(T));
    base_ = start - shift_;
  }

  /// Vectors that hold the first n columns.
  __device__ int vectors_of(int n) const { return (shift_ + n + kN - 1) / kN; }
  __device__ int real_vectors() const { return vectors_of(real_); }
  __device__ int all_vectors() const { return vectors_of(columns_); }
  /// Column of the first number of a vector.
  __device__ int column(int vector) const { return vector * kN - shift_; }
  __device__ float logit(int column) const { return static_cast<float>(base_[shift_ + column]); }

  /// A vector of the row; what of it is not in the row is not touched.
  __device__ Pack<T, kN> load(int vector) const {
    if (is_within(vector, columns_)) return load_pack<kN>(base_, Index{vector} * kN);
    T at[kN]{};
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (column(vector) + i >= 0 && column(vector) + i < columns_) at[i] = base_[vector * kN + i];
    }
    Pack<T, kN> pack;
    memcpy(&pack.word, at, sizeof at);
    return pack;
  }
  /// Its numbers, -inf for what is no word.
  __device__ Values<float, kN> logits(int vector, const Pack<T, kN>& pack) const {
    Values<float, kN> z = unpack(pack);
    if (is_within(vector, real_)) return z;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (column(vector) + i < 0 || column(vector) + i >= real_) z[i] = -INFINITY;
    }
    return z;
  }
  __device__ void store(int vector, const Values<float, kN>& values) const {
    const Pack<T, kN> packed = pack<T>(values);
    if (is_within(vector, columns_)) return store_pack(base_, Index{vector} * kN, packed);
    T at[kN];
    memcpy(at, &packed.word, sizeof at);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (column(vector) + i >= 0 && column(vector) + i < columns_) base_[vector * kN + i] = at[i];
    }
  }

 private:
  __device__ bool is_within(int vector, int end) const { return column(vector) >= 0 && column(vector) + kN <= end; }

  T* base_;  // the row's start, rounded down to 16 bytes
  int shift_, columns_, real_;
};

/// Calls body(vector, pack) for the thread's share of the vectors [0, end), with kUnroll loads ahead; which thread
/// takes a vector depends on its number alone.
template <class T, class Load, class Body>
__device__ void for_vectors(int begin, int end, const Load& load, const Body& body) {
  const int first = begin + (static_cast<int>(threadIdx.x) - begin % kThreads + kThreads) % kThreads;
  for (int vector = first; vector < end; vector += kUnroll * kThreads) {
    Pack<T, kPack<T>> packs[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) packs[i] = load(min(vector + i * kThreads, end - 1));
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (vector + i * kThreads < end) body(vector + i * kThreads, packs[i]);
    }
  }
}

/// sum = sum of e^(z - max) over the numbers seen so far.
template <class T>
struct RunningSum {
  float max = -FLT_MAX, sum = 0;  // no -inf: (-inf) - (-inf) is no number

  template <int N>
  __device__ void add(const Values<float, N>& z) {
    float most = z[0];
#pragma unroll
    for (int i = 1; i < N; ++i) most = fmaxf(most, z[i]);
    if (most > max) {
      sum *= exp_of<T>(max - most);
      max = most;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exp_of<T>(z[i] - max);
  }
};
template <class T>
struct Join {
  __device__ RunningSum<T> operator()(const RunningSum<T>& a, const RunningSum<T>& b) const {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_of<T>(a.max - max) + b.sum * exp_of<T>(b.max - max)};
  }
};
struct Most {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Writes (e * factor - [column is target] * scale) over a vector.
template <class T, int N>
__device__ void store_gradient(const LogitsRow<T>& row, int vector, Values<float, N> e, float factor, int target,
                               float scale) {
#pragma unroll
  for (int i = 0; i < N; ++i) e[i] *= factor;
  const int offset = target - row.column(vector);
  if (offset >= 0 && offset < N) {
#pragma unroll
    for (int i = 0; i < N; ++i) e[i] -= i == offset ? scale : 0.0f;
  }
  row.store(vector, e);
}

template <class T>
__device__ void zero_row(const LogitsRow<T>& row) {
  for (int vector = static_cast<int>(threadIdx.x); vector < row.all_vectors(); vector += kThreads)
    row.store(vector, {});
}

/// The first sweep sums e^z with a running maximum and keeps what fits of the row in shared memory; the second writes
/// the gradient. Two rows of 50304 bf16 fit a multiprocessor: one is read while the other is written. Moves 2 elements
/// of T an element (1 without a StepState) and 8 bytes a row; two exp an element.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, const std::int32_t* targets, const StepState* state, float* loss, int columns,
                         int real, int most_kept) {
  using Vector = Pack<T, kPack<T>>;
  extern __shared__ uint4 shared_words[];
  __shared__ RunningSum<T> shared[kMostWarps];
  auto* kept = reinterpret_cast<Vector*>(shared_words);
  const Index t = blockIdx.x;
  const int target = targets[t];
  const LogitsRow<T> row(logits, t, columns, real);
  if (target < 0) {
    if (threadIdx.x == 0) loss[t] = 0;
    if (state != nullptr) zero_row(row);
    return;
  }

  const auto from_memory = [&](int vector) { return row.load(vector); };
  const int num_kept = min(most_kept, row.real_vectors());
  RunningSum<T> total;
  for_vectors<T>(0, row.real_vectors(), from_memory, [&](int vector, const Vector& pack) {
    if (vector < num_kept) kept[vector] = pack;
    total.add(row.logits(vector, pack));
  });
  const float target_logit = row.logit(target);
  total = block_reduce(total, shared, Join<T>{});
  if (threadIdx.x == 0) loss[t] = logf(total.sum) + (total.max - target_logit);
  if (state == nullptr) return;

  const float scale = static_cast<float>(state->loss_scale), factor = scale / total.sum;
  const auto from_shared = [&](int vector) { return kept[vector]; };
  const auto write = [&](int vector, const Vector& pack) {
    Values<float, kPack<T>> e = row.logits(vector, pack);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) e[i] = exp_of<T>(e[i] - total.max);
    store_gradient(row, vector, e, factor, target, scale);
  };
  for_vectors<T>(0, num_kept, from_shared, write);  // each thread its own: no barrier
  for_vectors<T>(num_kept, row.all_vectors(), from_memory, write);
}

/// Reads each logit once.
template <class T>
__global__ void __launch_bounds__(kThreads) logits_max_kernel(T* logits, float* row_max, int columns, int real) {
  __shared__ float shared[kMostWarps];
  const LogitsRow<T> row(logits, blockIdx.x, columns, real);
  float most = -INFINITY;
  for_vectors<T>(
      0, row.real_vectors(), [&](int vector) { return row.load(vector); },
      [&](int vector, const Pack<T, kPack<T>>& pack) {
        const Values<float, kPack<T>> z = row.logits(vector, pack);
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) most = fmaxf(most, z[i]);
      });
  most = block_reduce(most, shared, Most{});
  if (threadIdx.x == 0) row_max[blockIdx.x] = most;
}

/// Reads and writes each logit once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    logits_sum_exp_kernel(T* logits, const float* row_max, const std::int32_t* targets, float* sums, Index first_id,
                          int columns, int real) {
  __shared__ float shared[kMostWarps];
  const Index t = blockIdx.x, tokens = gridDim.x, column = targets[t] - first_id;
  const LogitsRow<T> row(logits, t, columns, real);
  const float max = row_max[t];
  if (threadIdx.x == 0) {
    const bool held = targets[t] >= 0 && column >= 0 && column < real;
    sums[tokens + t] = held ? row.logit(static_cast<int>(column)) - max : 0.0f;
  }
  __syncthreads();  // the target's logit has been read
  float sum = 0;
  for_vectors<T>(
      0, row.all_vectors(), [&](int vector) { return row.load(vector); },
      [&](int vector, const Pack<T, kPack<T>>& pack) {
        Values<float, kPack<T>> e = row.logits(vector, pack);
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) {
          e[i] = exp_of<T>(e[i] - max);
          sum += e[i];
        }
        row.store(vector, e);
      });
  sum = block_reduce(sum, shared, Plus{});
  if (threadIdx.x == 0) sums[t] = sum;
}

/// Reads and writes each logit once; only writes in rows without loss.
template <class T>
__global__ void __launch_bounds__(kThreads)
    logits_backward_kernel(T* logits, const float* sums, const std::int32_t* targets, const StepState* state,
                           Index first_id, int columns) {
  const Index t = blockIdx.x;
  const LogitsRow<T> row(logits, t, columns, columns);
  if (targets[t] < 0) return zero_row(row);
  const float scale = static_cast<float>(state->loss_scale), factor = scale / sums[t];
  const auto target = static_cast<int>(targets[t] - first_id);  // of another rank: no column of this one
  for_vectors<T>(
      0, row.all_vectors(), [&](int vector) { return row.load(vector); },
      [&](int vector, const Pack<T, kPack<T>>& pack) {
        store_gradient(row, vector, unpack(pack), factor, target, scale);
      });
}

/// loss = log(sum) - target logit: an op of the map kernel.  16 bytes a token moved.
struct LossOfSums {
  const std::int32_t* targets;
  template <int N>
  __device__ void operator()(const Place& place, const Values<float, N>* in, Values<float, N>* out) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[0][i] = targets[place.element + i] < 0 ? 0.0f : logf(in[0][i]) - in[1][i];
  }
};

/// How many of the held columns are words and not padding.
int real_columns(const Tensor& logits, Index first_id, Index vocab_size) {
  return static_cast<int>(std::clamp<Index>(vocab_size - first_id, 0, logits.dim(1)));
}

int columns_of(const Tensor& logits) { return static_cast<int>(logits.dim(1)); }

/// Vectors of a row that each of two blocks on a multiprocessor can keep in shared memory.
template <class T>
int most_kept_vectors(int columns) {
  const auto attribute = [](cudaDeviceAttr name) {
    int device = 0, value = 0;
    megalith::cuda::check(cudaGetDevice(&device));
    megalith::cuda::check(cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  const int room = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 -
                   attribute(cudaDevAttrReservedSharedMemoryPerBlock) -
                   static_cast<int>(sizeof(RunningSum<T>) * kMostWarps);
  const int row = columns / kPack<T> + 2;  // a row may start and end within a vector
  return std::min(row, room / 16);
}

}  // namespace

void cross_entropy(Stream stream, const CrossEntropy& args) {
  const int columns = columns_of(args.logits);
  dispatch_element(args.logits.dtype(), [&]<class T>() {
    const auto kernel = cross_entropy_kernel<T>;
    const int kept = args.step_state ? most_kept_vectors<T>(columns) : 0;
    megalith::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 16 * kept));
    megalith::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             kept > 0 ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault));
    launch({stream, args.logits.dim(0), kThreads, 16 * kept}, kernel, pointer<T>(args.logits),
           pointer<const std::int32_t>(args.targets), pointer<const StepState>(args.step_state),
           pointer<float>(args.loss), columns, real_columns(args.logits, 0, args.vocab_size), kept);
  });
  add_all(stream, pointer<const float>(args.loss), args.loss.numel(), pointer<double>(args.loss_sum));
}

void logits_max(Stream stream, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size) {
  dispatch_element(logits.dtype(), [&]<class T>() {
    launch({stream, logits.dim(0), kThreads}, logits_max_kernel<T>, pointer<T>(logits), pointer<float>(row_max),
           columns_of(logits), real_columns(logits, first_id, vocab_size));
  });
}

void logits_sum_exp(Stream stream, const LogitsSumExp& args) {
  dispatch_element(args.logits.dtype(), [&]<class T>() {
    launch({stream, args.logits.dim(0), kThreads}, logits_sum_exp_kernel<T>, pointer<T>(args.logits),
           pointer<const float>(args.row_max), pointer<const std::int32_t>(args.targets), pointer<float>(args.sums),
           args.first_id, columns_of(args.logits), real_columns(args.logits, args.first_id, args.vocab_size));
  });
}

void loss_from_sums(Stream stream, const LossFromSums& args) {
  const Index tokens = args.loss.numel();
  const auto* sums = pointer<const float>(args.sums);
  map(stream, Flat{tokens}, std::array{sums, sums + tokens}, std::array{pointer<float>(args.loss)},
      LossOfSums{pointer<const std::int32_t>(args.targets)});
  add_all(stream, pointer<const float>(args.loss), args.loss.numel(), pointer<double>(args.loss_sum));
}

void logits_backward(Stream stream, const LogitsBackward& args) {
  dispatch_element(args.logits.dtype(), [&]<class T>() {
    launch({stream, args.logits.dim(0), kThreads}, logits_backward_kernel<T>, pointer<T>(args.logits),
           pointer<const float>(args.sums), pointer<const std::int32_t>(args.targets),
           pointer<const StepState>(args.step_state), args.first_id, columns_of(args.logits));
  });
}

}  // namespace megalith::ops::cuda
