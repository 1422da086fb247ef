#include <algorithm>

#include "megalith/ops/capacity_kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/weight_order.h"

namespace megalith::ops::cpu {

/// A pair's rank among its expert's pairs is the number of pairs before it. By probability it is the number of those
/// with a greater weight, or an equal one and an earlier place. It is counted by one pass over the run for every pair.
/// Runs are short, and experts with no more pairs than their capacity are skipped.
void drop_pairs(const DropPairs& args) {
  dispatch_wide(args.by == DropBy::probability ? args.weights.dtype() : DType::f32, "drop_pairs", [&]<class T>() {
    const Index pairs = args.experts.numel(), of_run = args.run * args.experts.dim(1), runs = pairs / of_run;
    const T* all_weights = args.by == DropBy::probability ? args.weights.data<T>() : nullptr;
    const auto* all_experts = args.experts.data<std::int32_t>();
    auto* all_kept = args.kept.data<std::int32_t>();
    std::copy_n(all_experts, pairs, all_kept);
    parallel_for(runs * args.num_experts, pairs * args.num_experts, [&](Index i) {
      const Index first = i / args.num_experts * of_run;
      const auto e = static_cast<std::int32_t>(i % args.num_experts);
      const std::int32_t* experts = all_experts + first;
      const T* weights = all_weights == nullptr ? nullptr : all_weights + first;
      if (std::count(experts, experts + of_run, e) <= args.capacity) return;
      Index before = 0;
      for (Index pair = 0; pair < of_run; ++pair) {
        if (experts[pair] != e) continue;
        Index rank = before++;
        if (weights != nullptr) {
          rank = 0;
          const auto mine = weight_order(weights[pair]);
          for (Index other = 0; other < of_run; ++other) {
            if (experts[other] != e) continue;
            const auto its = weight_order(weights[other]);
            if (its > mine || (its == mine && other < pair)) ++rank;
          }
        }
        if (rank >= args.capacity) all_kept[first + pair] = -1;
      }
    });
  });
}

}  // namespace megalith::ops::cpu
