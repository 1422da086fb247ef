#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cross_entropy_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops::cpu {
namespace {

/// How many of the held columns are words and not padding.
Index real_columns(Index held, Index first_id, Index vocab_size) {
  return std::clamp<Index>(vocab_size - first_id, 0, held);
}

/// The target's column here, or -1 when another rank holds it or there is none.
Index held_column(std::int32_t target, Index first_id, Index held) {
  const Index column = target - first_id;
  return target >= 0 && column >= 0 && column < held ? column : -1;
}

}  // namespace

void logits_max(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size) {
  dispatch_float(logits.dtype(), "logits_max", [&]<class T>() {
    const Index held = logits.dim(1), real = real_columns(held, first_id, vocab_size);
    const T* z = logits.data<T>();
    auto* max = row_max.data<Arithmetic<T>>();
    parallel_rows(logits.dim(0), held, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) max[t] = kernels<T>().softmax.row_max(z + t * held, real);
    });
  });
}

namespace {

/// sums[0, t] = exp_sum(row, max), sums[1, t] = (z - max) at the target where it is held, else 0.
template <class T, class ExpSum>
void sum_rows(const LogitsSumExp& args, const ExpSum& exp_sum) {
  using A = Arithmetic<T>;
  const Index tokens = args.logits.dim(0), held = args.logits.dim(1);
  const Index real = real_columns(held, args.first_id, args.vocab_size);
  T* z = args.logits.data<T>();
  A *sum = args.sums.data<A>(), *target_logit = sum + tokens;
  const A* max = args.row_max.data<A>();
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  parallel_rows(tokens, held, [&](Index begin, Index count) {
    for (Index t = begin; t < begin + count; ++t) {
      T* row = z + t * held;
      const Index column = held_column(targets[t], args.first_id, real);
      target_logit[t] = column < 0 ? A{0} : static_cast<A>(row[column]) - max[t];
      sum[t] = exp_sum(row, max[t]);
    }
  });
}

/// The gradient of every row. probabilities(t, row, factor) writes exp(z - max) * factor, then the target's part is
/// subtracted. Rows without a target become 0.
template <class T, class Probabilities>
void gradient_rows(const LogitsBackward& args, const Probabilities& probabilities) {
  using A = Arithmetic<T>;
  const Index tokens = args.logits.dim(0), held = args.logits.dim(1);
  T* z = args.logits.data<T>();
  const A *sum = args.sums.data<A>(), *target_logit = sum + tokens;
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  StepState state;
  std::memcpy(&state, args.step_state.raw(), sizeof state);
  const A scale = static_cast<A>(state.loss_scale);
  parallel_rows(tokens, held, [&](Index begin, Index count) {
    for (Index t = begin; t < begin + count; ++t) {
      T* row = z + t * held;
      if (targets[t] < 0) {
        std::fill_n(row, held, T{});
        continue;
      }
      const A factor = static_cast<A>(state.loss_scale / static_cast<double>(sum[t]));
      probabilities(t, row, factor);
      const Index column = held_column(targets[t], args.first_id, held);
      if (column < 0) continue;
      // In 16 bits a probability near 1 is too coarse to subtract 1 from, so this one is recomputed.
      const A probability = std::is_same_v<T, A> ? static_cast<A>(row[column]) : std::exp(target_logit[t]) * factor;
      row[column] = static_cast<T>(probability - scale);
    }
  });
}

}  // namespace

void logits_sum_exp(const LogitsSumExp& args) {
  dispatch_float(args.logits.dtype(), "logits_sum_exp", [&]<class T>() {
    const Index held = args.logits.dim(1), real = real_columns(held, args.first_id, args.vocab_size);
    sum_rows<T>(args, [&](T* row, Arithmetic<T> max) {
      std::fill_n(row + real, held - real, T{});
      return kernels<T>().softmax.exp_sum(row, real, max);
    });
  });
}

void loss_from_sums(const LossFromSums& args) {
  dispatch_wide(args.sums.dtype(), "loss_from_sums", [&]<class T>() {
    constexpr Index kBlock = 1024;  // losses of this many tokens are added before they join the sum
    const Index tokens = args.loss.dim(0);
    const T *sum = args.sums.data<T>(), *target_logit = sum + tokens;
    const std::int32_t* targets = args.targets.data<std::int32_t>();
    T* loss = args.loss.data<T>();
    for (Index t = 0; t < tokens; ++t) {
      if (targets[t] >= -1 && targets[t] < args.vocab_size) continue;
      throw InputError(str("[cross_entropy] targets[", t, "] = ", targets[t], ": must be in [0, ", args.vocab_size,
                           "), the vocabulary, or -1 for no loss"));
    }
    double& total = *args.loss_sum.data<double>();
    for (Index begin = 0; begin < tokens; begin += kBlock) {
      double block = 0;
      for (Index t = begin; t < std::min(begin + kBlock, tokens); ++t) {
        loss[t] = targets[t] < 0 ? T{0} : std::log(sum[t]) - target_logit[t];
        block += static_cast<double>(loss[t]);
      }
      total += block;
    }
  });
}

void logits_backward(const LogitsBackward& args) {
  dispatch_float(args.logits.dtype(), "logits_backward", [&]<class T>() {
    gradient_rows<T>(args, [held = args.logits.dim(1)](Index, T* row, Arithmetic<T> factor) {
      kernels<T>().elementwise.scale(row, factor, held);
    });
  });
}

namespace {

/// Cross entropy on one rank, which needs no values stored between the sum and the gradient. In 16 bits storing would
/// round twice and lose what f16 cannot hold before it is scaled. In f32 one exponential per element is faster.
template <class T>
void cross_entropy_16(const CrossEntropy& args, const Tensor& row_max, const Tensor& sums) {
  const Index held = args.logits.dim(1), real = real_columns(held, 0, args.vocab_size);
  const float* max = row_max.data<float>();
  sum_rows<T>({args.logits, row_max, args.targets, sums, 0, args.vocab_size},
              [&](const T* row, float most) { return kernels<T>().softmax.sum_of_exp(row, real, most); });
  loss_from_sums({sums, args.targets, args.loss, args.loss_sum, args.vocab_size});
  if (!args.step_state) return;
  gradient_rows<T>({args.logits, sums, args.targets, args.step_state, 0}, [&](Index t, T* row, float factor) {
    kernels<T>().softmax.exp_times(row, real, max[t], factor);
    std::fill_n(row + real, held - real, T{});
  });
}

}  // namespace

void cross_entropy(const CrossEntropy& args, const Tensor& statistics) {
  dispatch_float(args.logits.dtype(), "cross_entropy", [&]<class T>() {
    const Index tokens = args.logits.dim(0);
    const Tensor row_max = statistics.rows(0, 1).reshaped({tokens}), sums = statistics.rows(1, 2);
    logits_max(args.logits, row_max, 0, args.vocab_size);
    if constexpr (!std::is_same_v<T, Arithmetic<T>>) {
      cross_entropy_16<T>(args, row_max, sums);
    } else {
      logits_sum_exp({args.logits, row_max, args.targets, sums, 0, args.vocab_size});
      loss_from_sums({sums, args.targets, args.loss, args.loss_sum, args.vocab_size});
      if (args.step_state) logits_backward({args.logits, sums, args.targets, args.step_state, 0});
    }
  });
}

}  // namespace megalith::ops::cpu
