#include <cmath>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/gated_sum_kernels.h"

namespace megalith::ops::cpu {
namespace {

template <class A>
A sigmoid(A z) {
  return A{1} / (A{1} + std::exp(-z));
}

}  // namespace

void gated_sum(const GatedSum& args) {
  dispatch_float(args.routed.dtype(), "gated_sum", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index hidden = args.y.dim(1);
    const T *routed = args.routed.data<T>(), *shared = args.shared.data<T>();
    const A* gate = args.gate ? args.gate.data<A>() : nullptr;
    T* y = args.y.data<T>();
    const auto sum = kernels<T>().elementwise.weighted_sum;
    parallel_rows(args.y.dim(0), hidden, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        const T* rows[] = {routed + t * hidden, shared + t * hidden};
        const A factors[] = {A{1}, gate == nullptr ? A{1} : sigmoid(gate[t])};
        sum(rows, factors, 2, y + t * hidden, hidden);
      }
    });
  });
}

void gated_sum_backward(const GatedSumBackward& args) {
  dispatch_float(args.dy.dtype(), "gated_sum_backward", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index hidden = args.dy.dim(1);
    const T *dy = args.dy.data<T>(), *shared = args.shared.data<T>();
    const A* gate = args.gate.data<A>();
    T* d_shared = args.d_shared.data<T>();
    A* d_gate = args.d_gate.data<A>();
    parallel_rows(args.dy.dim(0), hidden, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        const A s = sigmoid(gate[t]);
        d_gate[t] = kernels<T>().gemm.dot(dy + t * hidden, shared + t * hidden, hidden) * s * (A{1} - s);
        kernels<T>().elementwise.scaled(dy + t * hidden, s, d_shared + t * hidden, hidden);
      }
    });
  });
}

}  // namespace megalith::ops::cpu
