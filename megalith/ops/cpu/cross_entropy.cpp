#include "megalith/ops/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/tensor/step_state.h"

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

template <class T>
void logits_max(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size) {
  const Index held = logits.dim(1), real = real_columns(held, first_id, vocab_size);
  const T* z = logits.data<T>();
  T* max = row_max.data<T>();
  parallel_rows(logits.dim(0), held, [&](Index begin, Index count) {
    for (Index t = begin; t < begin + count; ++t) max[t] = kernels<T>().softmax.row_max(z + t * held, real);
  });
}

template <class T>
void logits_sum_exp(const LogitsSumExp& args) {
  const Index tokens = args.logits.dim(0), held = args.logits.dim(1);
  const Index real = real_columns(held, args.first_id, args.vocab_size);
  T *z = args.logits.data<T>(), *sum = args.sums.data<T>();
  T* target_logit = sum + tokens;
  const T* max = args.row_max.data<T>();
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  parallel_rows(tokens, held, [&](Index begin, Index count) {
    for (Index t = begin; t < begin + count; ++t) {
      T* row = z + t * held;
      const Index column = held_column(targets[t], args.first_id, real);
      target_logit[t] = column < 0 ? T{0} : row[column] - max[t];
      sum[t] = kernels<T>().softmax.exp_sum(row, real, max[t]);
      std::fill_n(row + real, held - real, T{0});
    }
  });
}

template <class T>
void loss_from_sums(const LossFromSums& args) {
  constexpr Index kBlock = 1024;  // tokens whose losses are added before they join the sum
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
}

template <class T>
void logits_backward(const LogitsBackward& args) {
  const Index held = args.logits.dim(1);
  T* z = args.logits.data<T>();
  const T* sum = args.sums.data<T>();
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  StepState state;
  std::memcpy(&state, args.step_state.raw(), sizeof state);
  parallel_rows(args.logits.dim(0), held, [&](Index begin, Index count) {
    for (Index t = begin; t < begin + count; ++t) {
      T* row = z + t * held;
      if (targets[t] < 0) {
        std::fill_n(row, held, T{0});
        continue;
      }
      kernels<T>().elementwise.scale(row, static_cast<T>(state.loss_scale / static_cast<double>(sum[t])), held);
      const Index column = held_column(targets[t], args.first_id, held);
      if (column >= 0) row[column] -= static_cast<T>(state.loss_scale);
    }
  });
}

template <class T>
void cross_entropy(const CrossEntropy& args, const Tensor& statistics) {
  const Index tokens = args.logits.dim(0);
  const Tensor row_max = statistics.rows(0, 1).reshaped({tokens}), sums = statistics.rows(1, 2);
  logits_max<T>(args.logits, row_max, 0, args.vocab_size);
  logits_sum_exp<T>({args.logits, row_max, args.targets, sums, 0, args.vocab_size});
  loss_from_sums<T>({sums, args.targets, args.loss, args.loss_sum, args.vocab_size});
  if (args.step_state) logits_backward<T>({args.logits, sums, args.targets, args.step_state, 0});
}

template void cross_entropy<float>(const CrossEntropy& args, const Tensor& statistics);
template void cross_entropy<double>(const CrossEntropy& args, const Tensor& statistics);
template void logits_max<float>(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
template void logits_max<double>(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
template void logits_sum_exp<float>(const LogitsSumExp& args);
template void logits_sum_exp<double>(const LogitsSumExp& args);
template void loss_from_sums<float>(const LossFromSums& args);
template void loss_from_sums<double>(const LossFromSums& args);
template void logits_backward<float>(const LogitsBackward& args);
template void logits_backward<double>(const LogitsBackward& args);

}  // namespace megalith::ops::cpu
