#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "megalith/ops/cross_entropy_kernels.h"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/cuda/map.cuh"
#include "megalith/tensor/cuda/shared_limit.h"

// A block takes a row of logits. Rows are read in aligned vectors of 16 bytes wherever they start. The first and the
// last vector of a row may belong to it only in part.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // vectors in flight per thread

/// For types whose result is rounded, exponentials are powers of two, which take one instruction. For f32 they are
/// exact.
template <class T>
inline constexpr float kUnit = std::is_same_v<T, float> ? 1.0f : kLog2E;
/// e^(x / kUnit<T>)
template <class T>
__device__ float power(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return exp2_approx(x);
  }
}
/// The inverse.
template <class T>
__device__ float logarithm(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return logf(x);
  } else {
    return log2f(x);
  }
}
/// e^z relative to a reference, which is in units of kUnit<T>.
template <class T>
__device__ float relative_exp(float z, float reference) {
  return power<T>(__fmaf_rn(z, kUnit<T>, -reference));
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

  /// Number of vectors that hold the first n columns.
  __device__ int vectors_of(int n) const { return (shift_ + n + kN - 1) / kN; }
  __device__ int real_vectors() const { return vectors_of(real_); }
  __device__ int all_vectors() const { return vectors_of(columns_); }
  /// Column of the first number of a vector.
  __device__ int column(int vector) const { return vector * kN - shift_; }
  __device__ float logit(int column) const { return static_cast<float>(base_[shift_ + column]); }

  /// A vector of the row. Elements outside the row are not read.
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
  /// Its numbers, and -inf for columns that are not words.
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

/// Calls body(vector, pack) for the thread's share of the vectors [0, end), with kUnroll loads ahead. The vector's
/// number alone decides which thread takes it.
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

/// sum = the sum of relative_exp(z, reference) over the numbers seen so far. The reference is the largest of them, in
/// units of kUnit<T> and at least -FLT_MAX / 2. (In 16 bits the loss is NaN where kLog2E times a number overflows.)
template <class T>
struct RunningSum {
  float reference = -FLT_MAX, sum = 0;  // no -inf: (-inf) - (-inf) is no number

  template <int N>
  __device__ void add(const Values<float, N>& z) {
    float most = z[0];
#pragma unroll
    for (int i = 1; i < N; ++i) most = fmaxf(most, z[i]);
    most = fmaxf(most, -FLT_MAX / 2) * kUnit<T>;
    if (most > reference) {
      sum *= power<T>(reference - most);
      reference = most;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += relative_exp<T>(z[i], reference);
  }
  /// -log of the probability of one of those numbers.
  __device__ float loss(float z) const { return (logarithm<T>(sum) + __fmaf_rn(-z, kUnit<T>, reference)) / kUnit<T>; }
};

/// The total of all threads of a block. `shared`: as for block_reduce().
template <class T>
__device__ RunningSum<T> add_up(RunningSum<T> mine, RunningSum<T> (&shared)[kMaxWarps]) {
  float most = mine.reference;
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) most = fmaxf(most, shuffle_xor(most, mask));
  float sum = mine.sum * power<T>(mine.reference - most);
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = {most, sum};
  __syncthreads();
  RunningSum<T> total{shared[0].reference, 0};
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) total.reference = fmaxf(total.reference, shared[warp].reference);
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp)
    total.sum += shared[warp].sum * power<T>(shared[warp].reference - total.reference);
  return total;
}
struct Most {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Writes (p - [column is target]) * scale over a vector, given p * scale.
template <class T, int N>
__device__ void store_gradient(const LogitsRow<T>& row, int vector, Values<float, N> p, int target, float scale) {
  const int offset = target - row.column(vector);
  if (offset >= 0 && offset < N) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] -= i == offset ? scale : 0.0f;
  }
  row.store(vector, p);
}

template <class T>
__device__ void zero_row(const LogitsRow<T>& row) {
  for (int vector = static_cast<int>(threadIdx.x); vector < row.all_vectors(); vector += kThreads)
    row.store(vector, {});
}

/// Writes, in the second sweep over a row, its gradient, given the sum of the first.
template <class T>
class RowGradient {
 public:
  __device__ RowGradient(const LogitsRow<T>& row, const RunningSum<T>& total, const StepState& state, int target)
      : row_(row), scale_(static_cast<float>(state.loss_scale)), factor_(scale_ / total.sum), target_(target) {
    // Where results are rounded anyway the factor goes into the exponent.
    reference_ = std::is_same_v<T, float> ? total.reference : total.reference - logarithm<T>(factor_);
  }
  __device__ void write(int vector, const Pack<T, kPack<T>>& pack) const {
    Values<float, kPack<T>> p = row_.logits(vector, pack);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      p[i] = relative_exp<T>(p[i], reference_);
      if constexpr (std::is_same_v<T, float>) p[i] *= factor_;
    }
    store_gradient(row_, vector, p, target_, scale_);
  }

 private:
  const LogitsRow<T>& row_;
  float scale_, factor_, reference_;
  int target_;
};

/// The first sweep sums e^z with a running maximum and keeps as much of the row in shared memory as fits. The second
/// writes the gradient. Two rows of 50304 bf16 fit an SM: one is read while the other is written. Moves 2 elements of T
/// per element (1 without a StepState) and 8 bytes per row, and takes two exp per element.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, const std::int32_t* targets, const StepState* state, float* loss, int columns,
                         int real, int max_kept) {
  using Vector = Pack<T, kPack<T>>;
  extern __shared__ uint4 shared_words[];
  __shared__ RunningSum<T> shared[kMaxWarps];
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
  const int num_kept = min(max_kept, row.real_vectors());
  RunningSum<T> total;
  for_vectors<T>(0, row.real_vectors(), from_memory, [&](int vector, const Vector& pack) {
    if (vector < num_kept) kept[vector] = pack;
    total.add(row.logits(vector, pack));
  });
  const float target_logit = row.logit(target);
  total = add_up(total, shared);
  if (threadIdx.x == 0) loss[t] = total.loss(target_logit);
  if (state == nullptr) return;

  const RowGradient<T> gradient(row, total, *state, target);
  const auto from_shared = [&](int vector) { return kept[vector]; };
  const auto write = [&](int vector, const Vector& pack) { gradient.write(vector, pack); };
  for_vectors<T>(0, num_kept, from_shared, write);  // each thread reads its own elements: no barrier
  for_vectors<T>(num_kept, row.all_vectors(), from_memory, write);
}

/// Constants of the kernel below: vectors per copy, and the maximal number of copies for one row.
constexpr int kChunkVectors = 2 * kThreads, kMaxChunks = 8;

/// The same, with the same bits, where whole rows fit shared memory and gradients are needed. A block takes row after
/// row. When the second sweep has finished a chunk, a bulk copy loads the next row's chunk there. So memory is read
/// while it is written. 32768 rows of 50304 bf16 on an H200 take 1.75 ms alone on the GPU, 88 % of a copy's rate. They
/// take 1.85 to 2 ms in a step. From compute capability 9.0 on.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_rows_kernel(T* logits, const std::int32_t* targets, const StepState* state, float* loss, int rows,
                              int columns, int real) {
#if __CUDA_ARCH__ >= 900
  using Vector = Pack<T, kPack<T>>;
  extern __shared__ uint4 shared_words[];
  __shared__ RunningSum<T> shared[2][kMaxWarps];
  __shared__ hopper::Barrier full[kMaxChunks], empty[kMaxChunks];
  auto* kept = reinterpret_cast<Vector*>(shared_words);
  const int vectors = columns / kPack<T>, chunks = (vectors + kChunkVectors - 1) / kChunkVectors;
  const auto for_chunk = [&](int chunk, const auto& body) {
    const int begin = chunk * kChunkVectors + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int vector = begin; vector < begin + kChunkVectors; vector += kThreads) {
      if (vector < vectors) body(vector, kept[vector]);
    }
  };
  const auto load = [&](int t, int chunk) {
    const int first = chunk * kChunkVectors;
    const auto bytes = static_cast<unsigned>(min(kChunkVectors, vectors - first) * sizeof(Vector));
    hopper::arrive_and_expect(full[chunk], bytes);
    hopper::load_bytes(kept + first, logits + Index{t} * columns + first * kPack<T>, bytes, full[chunk]);
  };
  if (threadIdx.x == 0) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      hopper::init(full[chunk], 1);
      hopper::init(empty[chunk], kThreads);
    }
    hopper::fence_init();
    for (int chunk = 0; chunk < chunks; ++chunk) load(static_cast<int>(blockIdx.x), chunk);
  }
  __syncthreads();

  unsigned parity = 0;
  for (int t = static_cast<int>(blockIdx.x); t < rows; t += static_cast<int>(gridDim.x), parity ^= 1u) {
    const int target = targets[t], next = t + static_cast<int>(gridDim.x);
    const LogitsRow<T> row(logits, t, columns, real);
    RunningSum<T> total;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      hopper::wait(full[chunk], parity);
      for_chunk(chunk, [&](int vector, const Vector& pack) { total.add(row.logits(vector, pack)); });
    }
    const float target_logit = static_cast<float>(reinterpret_cast<const T*>(kept)[max(target, 0)]);
    total = add_up(total, shared[parity]);
    if (threadIdx.x == 0) loss[t] = target < 0 ? 0.0f : total.loss(target_logit);

    const RowGradient<T> gradient(row, total, *state, target);
    const auto refill = [&](int chunk) {
      if (threadIdx.x > 0 || next >= rows) return;
      hopper::wait(empty[chunk], parity);
      load(next, chunk);
    };
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for_chunk(chunk, [&](int vector, const Vector& pack) {
        if (target < 0) return row.store(vector, {});
        gradient.write(vector, pack);
      });
      hopper::arrive(empty[chunk]);
      if (chunk > 0) refill(chunk - 1);
    }
    refill(chunks - 1);
  }
#endif
}

/// Reads each logit once: 32768 x 50304 bf16 on an H200 in 0.73 ms, a copy's rate.
template <class T>
__global__ void __launch_bounds__(kThreads) logits_max_kernel(T* logits, float* row_max, int columns, int real) {
  __shared__ float shared[kMaxWarps];
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

/// Reads and writes each logit once: 1.62 ms, 95 %.
template <class T>
__global__ void __launch_bounds__(kThreads)
    logits_sum_exp_kernel(T* logits, const float* row_max, const std::int32_t* targets, float* sums, Index first_id,
                          int columns, int real) {
  __shared__ float shared[kMaxWarps];
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
          e[i] = power<T>((e[i] - max) * kUnit<T>);  // exactly 1 for the largest
          sum += e[i];
        }
        row.store(vector, e);
      });
  sum = block_reduce(sum, shared, Plus{});
  if (threadIdx.x == 0) sums[t] = sum;
}

/// Reads and writes each logit once, 1.59 ms, 97 %; only writes in rows without loss.
template <class T>
__global__ void __launch_bounds__(kThreads)
    logits_backward_kernel(T* logits, const float* sums, const std::int32_t* targets, const StepState* state,
                           Index first_id, int columns) {
  const Index t = blockIdx.x;
  const LogitsRow<T> row(logits, t, columns, columns);
  if (targets[t] < 0) return zero_row(row);
  const float scale = static_cast<float>(state->loss_scale), factor = scale / sums[t];
  const auto target = static_cast<int>(targets[t] - first_id);  // for a target of another rank: no column of this one
  for_vectors<T>(
      0, row.all_vectors(), [&](int vector) { return row.load(vector); },
      [&](int vector, const Pack<T, kPack<T>>& pack) {
        Values<float, kPack<T>> p = unpack(pack);
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) p[i] *= factor;
        store_gradient(row, vector, p, target, scale);
      });
}

/// loss = log(sum) - target logit, by the map kernel. Moves 16 bytes per token: 0.5 MiB for 32768, no share of a roof.
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

/// Vectors that each of two blocks on an SM can keep in shared memory, in addition to what the kernels have there.
template <class T>
int max_kept_vectors() {
  constexpr int kOthers =
      static_cast<int>(2 * sizeof(RunningSum<T>) * kMaxWarps + 2 * sizeof(hopper::Barrier) * kMaxChunks);
  return (gpu_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 -
          gpu_attribute(cudaDevAttrReservedSharedMemoryPerBlock) - kOthers) /
         16;
}

/// Two blocks of an SM get as much shared memory each as there is, whatever a call uses of it.
template <class T>
void allow_kept_vectors() {
  using megalith::cuda::allow_shared_memory, megalith::cuda::Carveout;
  const int bytes = 16 * max_kept_vectors<T>();
  allow_shared_memory(cross_entropy_kernel<T>, bytes, Carveout::max);
  allow_shared_memory(cross_entropy_rows_kernel<T>, bytes, Carveout::max);
}

/// Whether cross_entropy_rows_kernel can do it.
template <class T>
bool takes_rows(const CrossEntropy& args, int max_kept) {
  const Index vectors = args.logits.dim(1) / kPack<T>;
  return args.step_state && args.logits.dim(1) % kPack<T> == 0 && is_aligned(args.logits.raw()) &&
         vectors <= max_kept && vectors <= kMaxChunks * kChunkVectors &&
         args.logits.dim(0) <= std::numeric_limits<int>::max() / 2 &&
         is_compiled_for_hopper(cross_entropy_rows_kernel<T>);
}

}  // namespace

void prepare_cross_entropy() {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    dispatch_element(dtype, [&]<class T>() { allow_kept_vectors<T>(); });
}

void cross_entropy(Stream stream, const CrossEntropy& args) {
  const int columns = columns_of(args.logits);
  dispatch_element(args.logits.dtype(), [&]<class T>() {
    const int max_kept = max_kept_vectors<T>();
    allow_kept_vectors<T>();
    if (takes_rows<T>(args, max_kept)) {
      const auto kernel = cross_entropy_rows_kernel<T>;
      const Index rows = args.logits.dim(0), bytes = columns * Index{sizeof(T)};
      launch({stream, std::min(rows, 2 * Index{gpu_attribute(cudaDevAttrMultiProcessorCount)}), kThreads, bytes},
             kernel, pointer<T>(args.logits), pointer<const std::int32_t>(args.targets),
             pointer<const StepState>(args.step_state), pointer<float>(args.loss), static_cast<int>(rows), columns,
             real_columns(args.logits, 0, args.vocab_size));
      return;
    }
    const auto kernel = cross_entropy_kernel<T>;
    // A row may start and end within a vector.
    const int kept = args.step_state ? std::min(max_kept, columns / kPack<T> + 2) : 0;
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
