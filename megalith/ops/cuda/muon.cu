#include "megalith/ops/adamw.h"
#include "megalith/ops/cuda/map.cuh"
#include "megalith/ops/cuda/masters.cuh"
#include "megalith/ops/muon_kernels.h"

// Element-wise maps; GEMMs take most of a Muon step.

namespace megalith::ops::cuda {
namespace {

constexpr int kRunThreads = 256;

/// {grad, m} -> {grad, m}. Moves 16 bytes per element.
struct Momentum {
  float momentum;
  const StepVerdict* verdict;
  template <int N>
  __device__ void operator()(const Place&, const Values<float, N>* in, Values<float, N>* out) const {
    const bool applies = verdict->apply != 0;
    const auto factor = static_cast<float>(verdict->factor);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = in[0][i] * factor, m = momentum * in[1][i] + g;
      out[0][i] = applies ? g + momentum * m : in[0][i];
      out[1][i] = applies ? m : in[1][i];
    }
  }
};

constexpr int kUpdateThreads = 256;

struct UpdateTensors {
  const float* update;
  const std::uint8_t* decays;
  const StepVerdict* verdict;
};

/// A thread takes N neighbours. Moves 12 bytes per element, 2 more with a copy in f16.
template <int N, class Masters>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(const Masters masters, const UpdateTensors tensors, double weight_decay, Index numel) {
  if (tensors.verdict->apply == 0) return;
  const Index element = (blockIdx.x * Index{kUpdateThreads} + threadIdx.x) * N;
  if (element >= numel) return;
  const auto rate = static_cast<float>(tensors.verdict->learning_rate);
  const float decay = tensors.decays[element / kDecayGroup] != 0
                          ? static_cast<float>(tensors.verdict->learning_rate * weight_decay)
                          : 0.0f;
  Values<float, N> values = masters.template unpacked<N>(masters.template load<N>(element), element);
  const Values<float, N> update = unpack(load_pack<N>(tensors.update, element));
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = values[i] - (rate * update[i] + decay * values[i]);
  masters.template store<N>(element, values);
}

/// x -> x / (sqrt(squares of its row) + eps). Reads and writes each element once.
struct DivideByNorms {
  const double* squares;
  template <int N>
  __device__ void operator()(const Place& place, const Values<float, N>* in, Values<float, N>* out) const {
    const auto inverse = static_cast<float>(1 / (sqrt(squares[place.row]) + kMuonNormEps));
#pragma unroll
    for (int i = 0; i < N; ++i) out[0][i] = in[0][i] * inverse;
  }
};

/// {x, y} -> a x + b y. Moves 3 elements.
struct WeightedSum {
  float a, b;
  template <int N>
  __device__ void operator()(const Place&, const Values<float, N>* in, Values<float, N>* out) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[0][i] = a * in[0][i] + b * in[1][i];
  }
};

/// A warp adds up a row: each lane every 32nd number, then the lanes pairwise.
__global__ void __launch_bounds__(kWarp) add_up_rows_kernel(const double* parts, double* totals, Index columns) {
  double sum = 0;
  for (Index c = threadIdx.x; c < columns; c += kWarp) sum += parts[blockIdx.x * columns + c];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
  if (threadIdx.x == 0) totals[blockIdx.x] = sum;
}

/// A thread block copies a row of the matrix from the weight.
__global__ void __launch_bounds__(kRunThreads)
    take_runs_kernel(const float* weight, const RowRuns runs, float* matrix, Index columns) {
  const Index row = blockIdx.x, in_weight = row / runs.run * runs.stride + runs.first + row % runs.run;
  for (Index c = threadIdx.x; c < columns; c += kRunThreads)
    matrix[row * columns + c] = weight[in_weight * columns + c];
}

/// A thread block writes a row of the matrix to the weight.
template <class T>
__global__ void __launch_bounds__(kRunThreads)
    put_runs_kernel(const T* matrix, const RowRuns runs, float scale, float* weight, Index columns) {
  const Index row = blockIdx.x, in_weight = row / runs.run * runs.stride + runs.first + row % runs.run;
  for (Index c = threadIdx.x; c < columns; c += kRunThreads)
    weight[in_weight * columns + c] = scale * convert<float>(matrix[row * columns + c]);
}

}  // namespace

void muon_momentum(Stream stream, const MuonMomentum& args) {
  float *const grad = pointer<float>(args.grad), *const m = pointer<float>(args.m);
  map(stream, Flat{args.grad.numel()}, std::array<const float*, 2>{grad, m}, std::array{grad, m},
      Momentum{static_cast<float>(args.momentum), pointer<const StepVerdict>(args.verdict)});
}

void muon_update(Stream stream, const MuonUpdate& args) {
  const UpdateTensors tensors{pointer<const float>(args.update), pointer<const std::uint8_t>(args.decays),
                              pointer<const StepVerdict>(args.verdict)};
  const Index numel = args.update.numel();
  with_masters(args.masters, [&](const auto& masters) {
    using Masters = std::decay_t<decltype(masters)>;
    const auto run = [&]<int N>() {
      launch({stream, ceil_div(numel, Index{kUpdateThreads} * N), kUpdateThreads}, update_kernel<N, Masters>, masters,
             tensors, args.weight_decay, numel);
    };
    if (masters.is_aligned() && is_aligned(tensors.update) && numel % kPack<float> == 0)
      run.template operator()<kPack<float>>();
    else
      run.template operator()<1>();
  });
}

void take_runs(Stream stream, const Tensor& weight, const RowRuns& runs, const Tensor& matrix) {
  launch({stream, matrix.dim(0), kRunThreads}, take_runs_kernel, pointer<const float>(weight), runs,
         pointer<float>(matrix), matrix.dim(1));
}

void put_runs(Stream stream, const PutRuns& args) {
  dispatch_element(args.matrix.dtype(), [&]<class T>() {
    launch({stream, args.matrix.dim(0), kRunThreads}, put_runs_kernel<T>, pointer<const T>(args.matrix), args.runs,
           static_cast<float>(args.scale), pointer<float>(args.weight), args.matrix.dim(1));
  });
}

void add_up_rows(Stream stream, const Tensor& parts, const Tensor& totals) {
  launch({stream, parts.dim(0), kWarp}, add_up_rows_kernel, pointer<const double>(parts), pointer<double>(totals),
         parts.dim(1));
}

void divide_by_norms(Stream stream, const Tensor& x, const Tensor& squares, const Tensor& out) {
  dispatch_element(out.dtype(), [&]<class T>() {
    map(stream, Matrix{x.dim(0), x.dim(1)}, std::array{pointer<const float>(x)}, std::array{pointer<T>(out)},
        DivideByNorms{pointer<const double>(squares)});
  });
}

void linear_sum(Stream stream, const LinearSum& args) {
  dispatch_element(args.x.dtype(), [&]<class T>() {
    map(stream, Flat{args.x.numel()}, std::array{pointer<const T>(args.x), pointer<const T>(args.y)},
        std::array{pointer<T>(args.out)}, WeightedSum{static_cast<float>(args.a), static_cast<float>(args.b)});
  });
}

}  // namespace megalith::ops::cuda
