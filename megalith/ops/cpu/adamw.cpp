#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/ops/adamw_kernels.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/init_kernels.h"

namespace megalith::ops::cpu {

void adamw(const AdamW& args) {
  dispatch_wide(args.value.dtype(), "adamw", [&]<class T>() {
    StepVerdict verdict;
    std::memcpy(&verdict, args.verdict.raw(), sizeof verdict);
    if (verdict.apply == 0) return;
    const double updates = static_cast<double>(verdict.update + 1);
    const AdamWFactors<T> factors{
        .beta1 = static_cast<T>(args.beta1),
        .beta2 = static_cast<T>(args.beta2),
        .one_minus_beta1 = static_cast<T>(1 - args.beta1),
        .one_minus_beta2 = static_cast<T>(1 - args.beta2),
        .gradient = static_cast<T>(verdict.factor),
        .step = static_cast<T>(verdict.learning_rate / (1 - std::pow(args.beta1, updates))),
        .inverse_bias2 = static_cast<T>(1 / (1 - std::pow(args.beta2, updates))),
        .eps = static_cast<T>(args.eps),
        .decay = 0,
    };
    AdamWFactors<T> decaying = factors;
    decaying.decay = static_cast<T>(verdict.learning_rate * args.weight_decay);
    T *w = args.value.data<T>(), *m = args.m.data<T>(), *v = args.v.data<T>();
    const T* grad = args.grad.data<T>();
    const std::uint8_t* decays = args.decays.data<std::uint8_t>();
    const Index n = args.value.numel();
    static_assert(kPiece % kDecayGroup == 0);
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      const Index end = begin + count;
      for (Index at = begin; at < end;) {  // neighbouring groups that decay alike
        const std::uint8_t decay = decays[at / kDecayGroup];
        Index stop = at;
        while (stop < end && decays[stop / kDecayGroup] == decay) stop = std::min(end, stop + kDecayGroup);
        kernels<T>().optimizer.adamw(w + at, m + at, v + at, grad + at, stop - at, decay != 0 ? decaying : factors);
        at = stop;
      }
    });
    if (args.copy) cast(args.value, args.copy);
  });
}

void sum_of_squares(const Tensor& x, const Tensor& sums) {
  dispatch_wide(x.dtype(), "sum_of_squares", [&]<class T>() {
    const T* data = x.data<T>();
    double* out = sums.data<double>();
    const Index n = x.dim(1), blocks = sums.dim(1);
    parallel_for(sums.numel(), x.numel(), [&](Index i) {
      const Index row = i / blocks, begin = i % blocks * kSquaresBlock;
      out[i] = kernels<T>().optimizer.sum_of_squares(data + row * n + begin, std::min(kSquaresBlock, n - begin));
    });
  });
}

void add_up(const Tensor& numbers, const Tensor& total) {
  double& sum = *total.data<double>();
  for (const double number : numbers.span<double>()) sum += number;
}

}  // namespace megalith::ops::cpu
