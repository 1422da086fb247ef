#include <algorithm>
#include <limits>

#include "megalith/ops/argmax_kernels.h"
#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {

void argmax(const Argmax& args) {
  dispatch_float(args.logits.dtype(), "argmax", [&]<class T>() {
    const Index rows = args.logits.dim(0), held = args.logits.dim(1);
    const Index real = std::clamp<Index>(args.vocab_size - args.first_id, 0, held);
    const T* logits = args.logits.data<T>();
    double* best = args.best.data<double>();
    parallel_rows(rows, held, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        double most = -std::numeric_limits<double>::infinity();
        Index id = -1;
        for (Index v = 0; v < real; ++v) {
          const auto z = converted<double>(logits[t * held + v]);
          if (z > most || (id < 0 && z == most)) {
            most = z;
            id = args.first_id + v;
          }
        }
        best[2 * t] = most;
        best[2 * t + 1] = static_cast<double>(id);
      }
    });
  });
}

void argmax_of_shards(const ArgmaxOfShards& args) {
  const Index rows = args.ids.numel(), pairs = args.best.dim(0);
  const double* best = args.best.data<double>();
  auto* ids = args.ids.data<std::int32_t>();
  for (Index t = 0; t < rows; ++t) {
    const double* most = best + 2 * t;
    for (const double* one = most; one < best + 2 * pairs; one += 2 * rows) {
      if (one[1] < 0) continue;
      if (most[1] < 0 || one[0] > most[0] || (one[0] == most[0] && one[1] < most[1])) most = one;
    }
    ids[t] = static_cast<std::int32_t>(most[1]);
  }
}

void count_matches(const CountMatches& args) {
  const auto *ids = args.ids.data<std::int32_t>(), *targets = args.targets.data<std::int32_t>();
  Index matches = 0;
  for (Index t = 0; t < args.ids.numel(); ++t) matches += targets[t] >= 0 && ids[t] == targets[t] ? 1 : 0;
  args.sum.data<double>()[0] += static_cast<double>(matches);
}

}  // namespace megalith::ops::cpu
