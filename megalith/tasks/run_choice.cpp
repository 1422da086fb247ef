#include "megalith/tasks/run_choice.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::tasks {
namespace {

void require_runs(std::span<const double> scores) {
  if (scores.empty()) throw InternalError("[run_choice] scores: there must be one at least");
}

}  // namespace

std::size_t best_run(std::span<const double> scores) {
  require_runs(scores);
  return static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin());
}

std::size_t median_run(std::span<const double> scores) {
  require_runs(scores);
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t run) { return scores[run]; });
  return order[(order.size() - 1) / 2];
}

}  // namespace megalith::tasks
