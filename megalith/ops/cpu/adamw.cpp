#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/ops/adamw_kernels.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/master_blocks.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/init_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// Elements [begin, end) of an op, of groups that decay alike: parameter by parameter, and run by run of their global
/// elements. `masters`: their values.
template <class T>
void update_rounded(const AdamW& args, T* masters, Index begin, Index end, const AdamWFactors<T>& factors,
                    std::int64_t update) {
  const auto* const params = static_cast<const RoundedParam*>(args.rounding.params.raw());
  const std::int32_t* const param_of = args.rounding.param_of.data<std::int32_t>();
  for (Index at = begin; at < end;) {
    const std::int32_t number = param_of[at / kDecayGroup];
    Index stop = at;
    while (stop < end && param_of[stop / kDecayGroup] == number) stop = std::min(end, stop + kDecayGroup);
    const RoundedParam& param = params[number];
    const RandomSite site = param.site(update);
    while (at < stop) {
      const Index in_param = args.rounding.first + at - param.begin,
                  count = std::min(stop - at, param.run - in_param % param.run);
      kernels<T>().optimizer.adamw_bf16({.w = masters + (at - begin),
                                         .m = args.m.data<bfloat16>() + at,
                                         .v = args.v.data<bfloat16>() + at,
                                         .grad = args.grad.data<T>() + at},
                                        count, factors, {.seed = site.seed, .step = site.step, .site = site.site},
                                        param.global(in_param));
      at += count;
    }
  }
}

}  // namespace

void adamw(const AdamW& args) {
  dispatch_wide(args.masters.dtype(), "adamw", [&]<class T>() {
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
    const bool is_rounded = args.m.dtype() == DType::bf16;
    const std::uint8_t* decays = args.decays.data<std::uint8_t>();
    const Index n = args.m.numel();
    static_assert(kPiece % kDecayGroup == 0 && kMasterBlock % kDecayGroup == 0);
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      const Index end = begin + count;
      for (Index at = begin; at < end;) {  // neighbouring groups that decay alike
        const std::uint8_t decay = decays[at / kDecayGroup];
        Index stop = at;
        while (stop < end && decays[stop / kDecayGroup] == decay) stop = std::min(end, stop + kDecayGroup);
        const AdamWFactors<T>& with = decay != 0 ? decaying : factors;
        update_masters<T>(args.masters, at, stop, [&](T* masters, Index first, Index some) {
          if (is_rounded)
            update_rounded(args, masters, first, first + some, with, verdict.update);
          else
            kernels<T>().optimizer.adamw(masters, args.m.data<T>() + first, args.v.data<T>() + first,
                                         args.grad.data<T>() + first, some, with);
        });
        at = stop;
      }
    });
    if (args.masters.whole && args.masters.copy) cast(args.masters.whole, args.masters.copy);
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
