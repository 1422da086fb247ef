#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/router_losses_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops::cpu {
namespace {

double loss_scale_of(const Tensor& step_state) {
  StepState state;
  std::memcpy(&state, step_state.raw(), sizeof state);
  return state.loss_scale;
}

/// The sum of a row's sigmoids, which may all be 0, plus the router's guard, as for its weights.
template <class T>
T guarded_sum_of(const T* p, Index experts) {
  T sum = 0;
  for (Index e = 0; e < experts; ++e) sum += p[e];
  return sum + static_cast<T>(1e-20);
}

}  // namespace

void sum_probabilities(const SumProbabilities& args, const Tensor& parts) {
  dispatch_wide(args.probabilities.dtype(), "sum_probabilities", [&]<class T>() {
    const Index tokens = args.probabilities.dim(0), experts = args.probabilities.dim(1), runs = args.sums.dim(0);
    const Index parts_of_run = parts.dim(1);
    const T* p = args.probabilities.data<T>();
    T *part_sums = parts.data<T>(), *sums = args.sums.data<T>();
    parallel_for(runs * parts_of_run, tokens * experts, [&](Index i) {
      const RunRows rows = rows_of_part(args.runs, tokens, {i / parts_of_run, i % parts_of_run});
      T* part = part_sums + i * experts;
      std::fill_n(part, experts, T{0});
      for (Index row = rows.begin; row < rows.end; ++row) {
        const T* of_row = p + row * experts;
        const T divisor = args.score == RouterScore::sigmoid ? guarded_sum_of(of_row, experts) : T{1};
        for (Index e = 0; e < experts; ++e) part[e] += of_row[e] / divisor;
      }
    });
    for (Index q = 0; q < runs; ++q) {
      T* sum = sums + q * experts;
      std::fill_n(sum, experts, T{0});
      for (Index i = q * parts_of_run; i < (q + 1) * parts_of_run; ++i)
        kernels<T>().elementwise.add(sum, part_sums + i * experts, sum, experts);
    }
  });
}

void load_loss(const LoadLoss& args) {
  dispatch_wide(args.sums.dtype(), "load_loss", [&]<class T>() {
    const Index runs = args.sums.dim(0), experts = args.sums.dim(1);
    const std::int64_t* counts = args.counts.data<std::int64_t>();
    const T* sums = args.sums.data<T>();
    double total = 0;
    for (Index i = 0; i < runs * experts; ++i) total += static_cast<double>(counts[i]) * static_cast<double>(sums[i]);
    *args.loss.data<double>() += args.factors.of_products(experts) * total;
  });
}

void load_loss_backward(const LoadLossBackward& args) {
  dispatch_wide(args.probabilities.dtype(), "load_loss_backward", [&]<class T>() {
    const Index experts = args.probabilities.dim(1);
    const std::int64_t* counts = args.counts.data<std::int64_t>();
    const T* probabilities = args.probabilities.data<T>();
    T* gradients = args.d_probabilities.data<T>();
    const auto factor = static_cast<T>(args.factors.of_products(experts) * loss_scale_of(args.step_state));
    parallel_rows(args.probabilities.dim(0), experts, [&](Index begin, Index count) {
      for (Index row = begin; row < begin + count; ++row) {
        const std::int64_t* of_run = counts + args.runs.of(row) * experts;
        const T* p = probabilities + row * experts;
        T* d = gradients + row * experts;
        for (Index e = 0; e < experts; ++e) d[e] = factor * static_cast<T>(of_run[e]);
        if (args.score == RouterScore::softmax) continue;
        const T sum = guarded_sum_of(p, experts), mean = kernels<T>().gemm.dot(p, d, experts) / sum;
        for (Index e = 0; e < experts; ++e) d[e] = (d[e] - mean) / sum;
      }
    });
  });
}

void z_loss(const ZLoss& args, const Tensor& squares) {
  dispatch_wide(args.logits.dtype(), "z_loss", [&]<class T>() {
    const Index tokens = args.logits.dim(0), experts = args.logits.dim(1);
    T* of_rows = squares.data<T>();
    parallel_rows(tokens, experts, [&](Index begin, Index count) {
      for (Index row = begin; row < begin + count; ++row) {
        const T* z = args.logits.data<T>() + row * experts;
        const T max = kernels<T>().softmax.row_max(z, experts);
        const T log_sum = max + std::log(kernels<T>().softmax.sum_of_exp(z, experts, max));
        of_rows[row] = log_sum * log_sum;
      }
    });
    double total = 0;
    for (Index row = 0; row < tokens; ++row) total += static_cast<double>(of_rows[row]);
    *args.loss.data<double>() += args.weight * total;
  });
}

void z_loss_backward(const ZLossBackward& args) {
  dispatch_wide(args.logits.dtype(), "z_loss_backward", [&]<class T>() {
    const Index experts = args.logits.dim(1);
    const double factor = 2 * args.weight * loss_scale_of(args.step_state);
    parallel_rows(args.logits.dim(0), experts, [&](Index begin, Index count) {
      T p[kMaxRouterExperts];
      for (Index row = begin; row < begin + count; ++row) {
        const T* z = args.logits.data<T>() + row * experts;
        T* d = args.d_logits.data<T>() + row * experts;
        std::copy_n(z, experts, p);
        const T max = kernels<T>().softmax.row_max(z, experts), sum = kernels<T>().softmax.exp_sum(p, experts, max);
        const T of_row = static_cast<T>(factor) * (max + std::log(sum)) / sum;
        for (Index e = 0; e < experts; ++e) d[e] += of_row * p[e];
      }
    });
  });
}

}  // namespace megalith::ops::cpu
