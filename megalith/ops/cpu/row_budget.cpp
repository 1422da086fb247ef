#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/row_budget_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// left[e] = pairs of expert e.
void count_pairs(const LimitRows& args, std::int64_t* left) {
  const auto* experts = args.experts.data<std::int32_t>();
  std::fill_n(left, args.num_experts, 0);
  for (Index pair = 0; pair < args.experts.numel(); ++pair) {
    const std::int32_t expert = experts[pair];
    if (expert < -1 || expert >= args.num_experts)
      throw InputError(str("[limit_rows] experts[", pair, "] = ", expert, ": must be in -1 .. ", args.num_experts - 1));
    if (expert >= 0) ++left[expert];
  }
}

/// left[e] becomes the pairs of expert e that have room. Returns the most rows that a rank would need.
std::int64_t limit_counts(const LimitRows& args, std::int64_t* left) {
  std::int64_t most = 0, begin = 0;
  for (Index expert = 0; expert < args.num_experts; ++expert) {
    if (expert % args.local_experts == 0) begin = 0;
    const std::int64_t pairs = left[expert];
    left[expert] = std::clamp<std::int64_t>(args.room - begin, 0, pairs);
    begin += pairs;
    most = std::max(most, begin);
  }
  return most;
}

}  // namespace

/// By one thread, as plan_exchange(). Reads and writes 4 R n K bytes.
void limit_rows(const LimitRows& args, const Tensor& left_of_experts) {
  auto* experts = args.experts.data<std::int32_t>();
  auto* left = left_of_experts.data<std::int64_t>();
  count_pairs(args, left);
  const std::int64_t most = limit_counts(args, left);
  const Index of_rank = args.experts.dim(1) * args.experts.dim(2);
  std::int64_t beyond = 0;
  if (most > args.room) {
    for (Index pair = 0; pair < args.experts.numel(); ++pair) {
      if (experts[pair] < 0 || left[experts[pair]]-- > 0) continue;
      experts[pair] = -1;
      if (pair / of_rank == args.rank) ++beyond;
    }
  }
  if (args.dropped) args.dropped.data<std::int64_t>()[0] += beyond;
  if (!args.overflow) return;
  auto* overflow = args.overflow.data<std::int64_t>();
  overflow[0] += beyond;
  overflow[1] = std::max(overflow[1], most);
}

}  // namespace megalith::ops::cpu
