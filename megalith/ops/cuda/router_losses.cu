#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/router_losses_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kWarps = 32;              // warps that share the rows of a part
constexpr float kScoresGuard = 1e-20f;  // added to the sum of a row's sigmoids, which may all be 0

/// A block sums 32 columns over one part of a run: warp w the rows w, w + 32, ..., then the warps' sums in order. Reads
/// p once. Where p is normalised, each block that takes columns of a row reads the whole row once more.
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_part_kernel(const float* p, RouterScore score, const TokenRuns runs, Index tokens, int experts,
                    Index parts_of_run, int column_tiles, float* parts) {
  __shared__ float sums[kWarps][kWarp];
  const Index part = blockIdx.x / static_cast<unsigned>(column_tiles);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = static_cast<int>(blockIdx.x % static_cast<unsigned>(column_tiles)) * kWarp + lane;
  const RunRows rows = rows_of_part(runs, tokens, {part / parts_of_run, part % parts_of_run});
  float sum = 0;
  for (Index row = rows.begin + warp; row < rows.end; row += kWarps) {
    const float* of_row = p + row * experts;
    const float divisor =
        score == RouterScore::sigmoid ? sum_row(experts, [&](int e) { return of_row[e]; }) + kScoresGuard : 1.0f;
    if (column < experts) sum += of_row[column] / divisor;
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= experts) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  parts[part * experts + column] = sum;
}

/// A thread adds the parts of one sum, in order.
__global__ void add_run_parts_kernel(const float* parts, Index parts_of_run, Index experts, Index count, float* sums) {
  const Index i = blockIdx.x * Index{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const Index run = i / experts, expert = i % experts;
  float sum = 0;
#pragma unroll 8
  for (Index part = 0; part < parts_of_run; ++part) sum += parts[(run * parts_of_run + part) * experts + expert];
  sums[i] = sum;
}

/// One block: a few thousand numbers at most, in f64.
__global__ void __launch_bounds__(kMaxThreads)
    load_loss_kernel(const std::int64_t* counts, const float* sums, Index count, double factor, double* loss) {
  __shared__ double shared[kMaxWarps];
  double mine = 0;
  for (Index i = threadIdx.x; i < count; i += kMaxThreads)
    mine += static_cast<double>(counts[i]) * static_cast<double>(sums[i]);
  mine = block_reduce(mine, shared, Plus{});
  if (threadIdx.x == 0) *loss += factor * mine;
}

/// Combines the factor of a loss with the StepState's loss scale, which only the device knows.
__device__ float scaled(double factor, const StepState* state) {
  return static_cast<float>(factor * state->loss_scale);
}

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

/// A warp takes a row. Moves 8 bytes per expert.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    load_loss_backward_kernel(const std::int64_t* counts, const float* probabilities, const StepState* state,
                              double factor_before, RouterScore score, const TokenRuns runs, Index tokens, int experts,
                              float* gradients) {
  const Index row = row_of_warp();
  if (row >= tokens) return;
  const float factor = scaled(factor_before, state), *p = probabilities + row * experts;
  const std::int64_t* of_run = counts + runs.of(row) * experts;
  const auto gradient = [&](int e) { return factor * static_cast<float>(of_run[e]); };
  const bool normalised = score == RouterScore::sigmoid;
  const float sum = normalised ? sum_row(experts, [&](int e) { return p[e]; }) + kScoresGuard : 1.0f;
  const float mean = normalised ? sum_row(experts, [&](int e) { return p[e] * gradient(e); }) / sum : 0.0f;
  for (int e = lane(); e < experts; e += kWarp) gradients[row * experts + e] = (gradient(e) - mean) / sum;
}

/// A warp takes a row. Reads the logits, 4 bytes per expert.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    z_rows_kernel(const float* logits, Index tokens, int experts, float weight, float* squares) {
  const Index row = row_of_warp();
  if (row >= tokens) return;
  const float* z = logits + row * experts;
  const SoftmaxOfRow softmax(experts, [&](int e) { return z[e]; });
  const float log_sum = softmax.max + logf(softmax.sum);
  if (lane() == 0) squares[row] = weight * (log_sum * log_sum);
}

/// A warp takes a row. Moves 12 bytes per expert.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    z_backward_kernel(const float* logits, const StepState* state, double weight, Index tokens, int experts,
                      float* gradients) {
  const Index row = row_of_warp();
  if (row >= tokens) return;
  const float* z = logits + row * experts;
  const SoftmaxOfRow softmax(experts, [&](int e) { return z[e]; });
  const float factor = scaled(2 * weight, state) * (softmax.max + logf(softmax.sum));
  for (int e = lane(); e < experts; e += kWarp) gradients[row * experts + e] += factor * softmax.of(z[e]);
}

}  // namespace

void sum_probabilities(Stream stream, const SumProbabilities& args, const Tensor& parts) {
  const Index tokens = args.probabilities.dim(0), experts = args.probabilities.dim(1), tiles = ceil_div(experts, kWarp);
  const Index runs = args.sums.dim(0), parts_of_run = parts.dim(1);
  launch({stream, runs * parts_of_run * tiles, kWarps * kWarp}, sum_part_kernel,
         pointer<const float>(args.probabilities), args.score, args.runs, tokens, static_cast<int>(experts),
         parts_of_run, static_cast<int>(tiles), pointer<float>(parts));
  constexpr int kThreads = 256;
  launch({stream, ceil_div(runs * experts, kThreads), kThreads}, add_run_parts_kernel, pointer<const float>(parts),
         parts_of_run, experts, runs * experts, pointer<float>(args.sums));
}

void load_loss(Stream stream, const LoadLoss& args) {
  launch({stream, 1, kMaxThreads}, load_loss_kernel, pointer<const std::int64_t>(args.counts),
         pointer<const float>(args.sums), args.sums.numel(), args.factors.of_products(args.sums.dim(1)),
         pointer<double>(args.loss));
}

void load_loss_backward(Stream stream, const LoadLossBackward& args) {
  const Index tokens = args.probabilities.dim(0), experts = args.probabilities.dim(1);
  launch(rows_launch(stream, tokens), load_loss_backward_kernel, pointer<const std::int64_t>(args.counts),
         pointer<const float>(args.probabilities), pointer<const StepState>(args.step_state),
         args.factors.of_products(experts), args.score, args.runs, tokens, static_cast<int>(experts),
         pointer<float>(args.d_probabilities));
}

void z_loss(Stream stream, const ZLoss& args, const Tensor& squares) {
  const Index tokens = args.logits.dim(0);
  auto* const of_rows = pointer<float>(squares);
  launch(rows_launch(stream, tokens), z_rows_kernel, pointer<const float>(args.logits), tokens,
         static_cast<int>(args.logits.dim(1)), static_cast<float>(args.weight), of_rows);
  add_all(stream, pointer<const float>(squares), tokens, pointer<double>(args.loss));
}

void z_loss_backward(Stream stream, const ZLossBackward& args) {
  const Index tokens = args.logits.dim(0);
  launch(rows_launch(stream, tokens), z_backward_kernel, pointer<const float>(args.logits),
         pointer<const StepState>(args.step_state), args.weight, tokens, static_cast<int>(args.logits.dim(1)),
         pointer<float>(args.d_logits));
}

}  // namespace megalith::ops::cuda
