#include <algorithm>
#include <cmath>
#include <numeric>

#include "megalith/ops/expert_load_kernels.h"
#include "megalith/ops/step_end.h"

namespace megalith::ops::cpu {

void add_counts(const Tensor& from, const Tensor& to) {
  const Index runs = from.dim(0), experts = from.dim(1);
  const auto* counts = from.data<std::int64_t>();
  auto* sums = to.data<std::int64_t>();
  for (Index run = 0; run < runs; ++run) {
    for (Index e = 0; e < experts; ++e) sums[e] += counts[run * experts + e];
  }
}

void count_dropped(const Tensor& kept, const Tensor& to) {
  const auto* pairs = kept.data<std::int32_t>();
  *to.data<std::int64_t>() += std::count(pairs, pairs + kept.numel(), -1);
}

void update_experts(const UpdateExperts& args) {
  dispatch_wide(args.bias     ? args.bias.dtype()
                : args.shares ? args.shares.dtype()
                              : DType::f32,
                "update_experts", [&]<class T>() {
                  if (reinterpret_cast<const StepVerdict*>(args.verdict.raw())->apply == 0) return;
                  const Index experts = args.counts.numel();
                  const auto* counts = args.counts.data<std::int64_t>();
                  const std::int64_t sum = std::accumulate(counts, counts + experts, std::int64_t{0});
                  for (Index e = 0; e < experts; ++e) {
                    if (args.bias) {
                      // (mean - count) times the number of experts, in whole numbers.
                      const std::int64_t lack = sum - counts[e] * experts;
                      args.bias.data<T>()[e] += static_cast<T>(args.rate) * static_cast<T>((lack > 0) - (lack < 0));
                    }
                    if (args.shares)
                      args.shares.data<T>()[e] =
                          sum == 0 ? T{0} : static_cast<T>(static_cast<double>(counts[e]) / static_cast<double>(sum));
                  }
                });
}

void expert_bias_range(const Tensor& bias, const Tensor& range) {
  dispatch_wide(bias.dtype(), "expert_bias_range", [&]<class T>() {
    const auto [least, greatest] = std::minmax_element(bias.data<T>(), bias.data<T>() + bias.numel());
    range.data<double>()[0] = static_cast<double>(*least);
    range.data<double>()[1] = static_cast<double>(*greatest);
  });
}

void counts_of_shares(const Tensor& shares, const Tensor& counts, double total) {
  dispatch_wide(shares.dtype(), "counts_of_shares", [&]<class T>() {
    for (Index e = 0; e < shares.numel(); ++e)
      counts.data<std::int64_t>()[e] = std::llround(static_cast<double>(shares.data<T>()[e]) * total);
  });
}

}  // namespace megalith::ops::cpu
