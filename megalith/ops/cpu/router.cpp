#include <algorithm>
#include <cmath>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/router_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// p of one token.
template <class T>
void score(RouterScore score, const T* logits, T* p, Index experts) {
  const Kernels<T>& k = kernels<T>();
  if (score == RouterScore::softmax) {
    std::copy_n(logits, experts, p);
    const T sum = k.softmax.exp_sum(p, experts, k.softmax.row_max(logits, experts));
    return k.elementwise.scale(p, T{1} / sum, experts);
  }
  for (Index e = 0; e < experts; ++e) p[e] = -logits[e];
  k.softmax.exp(p, p, experts);
  for (Index e = 0; e < experts; ++e) p[e] = T{1} / (T{1} + p[e]);
}

/// The keys by which one token's experts are chosen.
template <class T>
struct Keys {
  const T* values;  // p, or the logits
  const T* bias;    // may be null

  T operator()(Index e) const {
    const T key = bias == nullptr ? values[e] : values[e] + bias[e];
    return std::isnan(key) ? std::numeric_limits<T>::infinity() : key;
  }
};

/// The best groups, one bit each.
template <class T>
std::uint64_t best_groups(const RouterRules& rules, const Keys<T>& keys, Index experts) {
  const Index size = experts / rules.num_groups;
  const bool two = rules.score == RouterScore::sigmoid || keys.bias != nullptr;
  T scores[kMaxRouterGroups];
  for (Index g = 0; g < rules.num_groups; ++g) {
    T best = -std::numeric_limits<T>::infinity(), second = best;
    for (Index e = g * size; e < (g + 1) * size; ++e) {
      const T key = keys(e);
      second = std::max(second, std::min(best, key));
      best = std::max(best, key);
    }
    scores[g] = two && size > 1 ? best + second : best;
  }
  std::uint64_t chosen = 0;
  for (Index i = 0; i < rules.group_top_k; ++i) {
    Index best = -1;
    for (Index g = 0; g < rules.num_groups; ++g) {
      if ((chosen >> g & 1u) == 0 && (best < 0 || scores[g] > scores[best])) best = g;
    }
    chosen |= std::uint64_t{1} << best;
  }
  return chosen;
}

/// experts [top_k], the best key first. Each expert of the chosen groups is inserted among the best so far, after those
/// with equal keys.
template <class T>
void choose(const RouterRules& rules, const Keys<T>& keys, Index num_experts, std::int32_t* experts) {
  const bool all = rules.group_top_k == rules.num_groups;
  const std::uint64_t groups = all ? ~std::uint64_t{0} : best_groups(rules, keys, num_experts);
  const Index group_size = num_experts / rules.num_groups;
  Index found = 0;
  for (Index e = 0; e < num_experts; ++e) {
    if ((groups >> e / group_size & 1u) == 0) continue;
    const T key = keys(e);
    if (found == rules.top_k && !(key > keys(experts[found - 1]))) continue;
    Index place = found < rules.top_k ? found++ : found - 1;
    for (; place > 0 && key > keys(experts[place - 1]); --place) experts[place] = experts[place - 1];
    experts[place] = static_cast<std::int32_t>(e);
  }
}

/// The raw scores of the chosen experts, before they are normalised and scaled.
template <class T>
void raw_weights(const RouterRules& rules, const T* logits, const T* p, const std::int32_t* experts, T* c) {
  if (rules.score == RouterScore::sigmoid || rules.order == ScoreOrder::before_top_k) {
    for (Index k = 0; k < rules.top_k; ++k) c[k] = p[experts[k]];
    return;
  }
  for (Index k = 0; k < rules.top_k; ++k) c[k] = logits[experts[k]];
  const Kernels<T>& with = kernels<T>();
  const T sum = with.softmax.exp_sum(c, rules.top_k, with.softmax.row_max(c, rules.top_k));
  for (Index k = 0; k < rules.top_k; ++k) c[k] /= sum;
}

template <class T>
T guarded_sum(const T* c, Index count) {
  T sum = 0;
  for (Index k = 0; k < count; ++k) sum += c[k];
  return sum + static_cast<T>(1e-20);
}

void expect_experts(const std::int32_t* experts, Index row, Index top_k, Index num_experts) {
  for (Index k = 0; k < top_k; ++k) {
    if (experts[k] >= 0 && experts[k] < num_experts) continue;
    throw InputError(str("[router] experts[", row, ", ", k, "] = ", experts[k], ": must be in 0 .. ", num_experts - 1));
  }
}

}  // namespace

void skew_logits(const Tensor& logits, double skew) {
  dispatch_wide(logits.dtype(), "skew_logits", [&]<class T>() {
    const Index experts = logits.dim(1);
    T less[kMaxRouterExperts];
    for (Index e = 0; e < experts; ++e) less[e] = static_cast<T>(skew * std::log1p(static_cast<double>(e)));
    parallel_rows(logits.dim(0), experts, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        T* row = logits.data<T>() + t * experts;
        for (Index e = 0; e < experts; ++e) row[e] -= less[e];
      }
    });
  });
}

void router_forward(const RouterForward& args) {
  dispatch_wide(args.logits.dtype(), "router_forward", [&]<class T>() {
    const Index tokens = args.logits.dim(0), num_experts = args.logits.dim(1), top_k = args.rules.top_k;
    const T *logits = args.logits.data<T>(), *bias = args.bias ? args.bias.data<T>() : nullptr;
    T *probabilities = args.probabilities.data<T>(), *weights = args.weights.data<T>();
    auto* const experts = args.experts.data<std::int32_t>();
    const bool by_logit = bias == nullptr && args.rules.score == RouterScore::softmax;
    parallel_rows(tokens, num_experts, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        const T* row = logits + t * num_experts;
        T *p = probabilities + t * num_experts, *w = weights + t * top_k;
        std::int32_t* chosen = experts + t * top_k;
        score(args.rules.score, row, p, num_experts);
        if (args.choice == RouterChoice::given)
          expect_experts(chosen, t, top_k, num_experts);
        else
          choose(args.rules, Keys<T>{by_logit ? row : p, bias}, num_experts, chosen);
        raw_weights(args.rules, row, p, chosen, w);
        const T sum = args.rules.normalize == NormalizeTopK::yes ? guarded_sum(w, top_k) : T{1};
        for (Index k = 0; k < top_k; ++k) w[k] = static_cast<T>(args.rules.scale) * (w[k] / sum);
      }
    });
    std::int64_t* counts = args.counts.data<std::int64_t>();
    std::fill_n(counts, args.counts.numel(), 0);
    for (Index t = 0; t < tokens; ++t) {
      std::int64_t* of_run = counts + args.runs.of(t) * num_experts;
      for (Index k = 0; k < top_k; ++k) ++of_run[experts[t * top_k + k]];
    }
  });
}

namespace {

/// dc [top_k], the gradient of the raw weights c.
template <class T>
void raw_weights_backward(const RouterRules& rules, const T* c, const T* dw, T* dc) {
  const T factor = static_cast<T>(rules.scale);
  T sum = 1, mean = 0;
  if (rules.normalize == NormalizeTopK::yes) {
    sum = guarded_sum(c, rules.top_k);
    for (Index k = 0; k < rules.top_k; ++k) mean += dw[k] * c[k];
    mean /= sum;
  }
  for (Index k = 0; k < rules.top_k; ++k) dc[k] = factor * ((dw[k] - mean) / sum);
}

/// d [experts]: turns the gradient of p into that of the logits.
template <class T>
void score_backward(RouterScore score, const T* p, T* d, Index experts) {
  if (score == RouterScore::sigmoid) {
    for (Index e = 0; e < experts; ++e) d[e] *= p[e] * (T{1} - p[e]);
    return;
  }
  const T mean = kernels<T>().gemm.dot(p, d, experts);
  for (Index e = 0; e < experts; ++e) d[e] = p[e] * (d[e] - mean);
}

}  // namespace

void router_backward(const RouterBackward& args) {
  dispatch_wide(args.logits.dtype(), "router_backward", [&]<class T>() {
    const Index num_experts = args.logits.dim(1), top_k = args.rules.top_k;
    const bool over_chosen = args.rules.score == RouterScore::softmax && args.rules.order == ScoreOrder::after_top_k;
    parallel_rows(args.logits.dim(0), num_experts, [&](Index begin, Index count) {
      T c[kMaxRouterExperts], dc[kMaxRouterExperts];
      for (Index t = begin; t < begin + count; ++t) {
        const T* p = args.probabilities.data<T>() + t * num_experts;
        const std::int32_t* experts = args.experts.data<std::int32_t>() + t * top_k;
        T* d = args.d_logits.data<T>() + t * num_experts;
        if (args.d_probabilities)
          std::copy_n(args.d_probabilities.data<T>() + t * num_experts, num_experts, d);
        else
          std::fill_n(d, num_experts, T{0});
        raw_weights(args.rules, args.logits.data<T>() + t * num_experts, p, experts, c);
        raw_weights_backward(args.rules, c, args.d_weights.data<T>() + t * top_k, dc);
        if (!over_chosen) {
          for (Index k = 0; k < top_k; ++k) d[experts[k]] += dc[k];
        }
        score_backward(args.rules.score, p, d, num_experts);
        if (!over_chosen) continue;
        const T mean = kernels<T>().gemm.dot(c, dc, top_k);
        for (Index k = 0; k < top_k; ++k) d[experts[k]] += c[k] * (dc[k] - mean);
      }
    });
  });
}

}  // namespace megalith::ops::cpu
