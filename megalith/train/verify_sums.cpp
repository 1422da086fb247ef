#include "megalith/train/verify_sums.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "megalith/checkpoint/box.h"

namespace megalith::train {
namespace {

using grid::Axis;

/// What the passes of a rank have added to the gradient, at its places in the whole one.
struct RankGradient {
  grid::PerAxis coordinates;
  std::vector<double> values;
};

/// Empty if a result has no place in the parameter.
std::vector<RankGradient> gradients_of_ranks(std::span<const RankOps> ranks, const std::string& parameter,
                                             std::size_t count) {
  std::vector<RankGradient> all;
  for (const RankOps& rank : ranks) {
    const auto placement = rank.placements.find(parameter);
    if (placement == rank.placements.end()) continue;
    const bool is_dense = placement->second.grid == grid::GridKind::dense;
    RankGradient of_rank{is_dense ? rank.on_dense : rank.on_experts, std::vector<double>(count)};
    for (const OpRecord& op : rank.ops) {
      for (const OpValue& value : op.results) {
        if (value.gradient_of != parameter) continue;
        if (value.slice.name.empty()) return {};
        const checkpoint::Runs places(checkpoint::box_of(value.slice), {{}, value.slice.global});
        for (Index i = 0, from = 0; i < places.count(); ++i)
          for (Index k = 0; k < places.length(); ++k, ++from)
            of_rank.values[static_cast<std::size_t>(places.start(i) + k)] +=
                value.values[static_cast<std::size_t>(from)];
      }
    }
    all.push_back(std::move(of_rank));
  }
  return all;
}

/// The axes of a set along which the ranks have more than one coordinate.
std::vector<Axis> axes_in_use(grid::Axes axes, const std::vector<RankGradient>& ranks) {
  std::vector<Axis> used;
  for (const Axis axis : grid::kAxes) {
    std::set<int> seen;
    for (const RankGradient& rank : ranks) seen.insert(rank.coordinates[axis]);
    if (axes.has(axis) && seen.size() > 1) used.push_back(axis);
  }
  return used;
}

/// The sum over the ranks that differ from one in the coordinates of `over`, or in those along which it is cut.
std::vector<double> sum_at(const std::vector<RankGradient>& ranks, const RankGradient& at,
                           const std::vector<Axis>& replicated, const std::vector<Axis>& over) {
  std::vector<double> sum(at.values.size());
  for (const RankGradient& rank : ranks) {
    const bool is_in = std::ranges::all_of(replicated, [&](Axis axis) {
      return std::ranges::find(over, axis) != over.end() || rank.coordinates[axis] == at.coordinates[axis];
    });
    for (std::size_t i = 0; is_in && i < sum.size(); ++i) sum[i] += rank.values[i];
  }
  return sum;
}

struct Multiple {
  double times = 0, distance = 0;
};
/// The multiple of `part` that is nearest to `whole`, and its largest distance, relative to the largest magnitude.
Multiple multiple_of(std::span<const double> whole, const std::vector<double>& part) {
  double product = 0, square = 0, largest = 0, apart = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    product += whole[i] * part[i];
    square += part[i] * part[i];
    largest = std::max(largest, std::abs(whole[i]));
  }
  const double times = square == 0 ? 0 : product / square;
  for (std::size_t i = 0; i < part.size(); ++i) apart = std::max(apart, std::abs(whole[i] - times * part[i]));
  return {times, largest == 0 ? 0 : apart / largest};
}

std::vector<std::string> names_of(const std::vector<Axis>& axes, grid::GridKind grid) {
  std::vector<std::string> names;
  for (const Axis axis : axes) {
    const bool is_renamed = grid == grid::GridKind::expert && (axis == Axis::tp || axis == Axis::dp);
    names.push_back((is_renamed ? "e" : "") + std::string(grid::name_of(axis)));
  }
  return names;
}

}  // namespace

bool GradientSum::is_right(double band) const { return fits && over == must_be && std::abs(times - 1) <= band; }

std::optional<GradientSum> sum_of_gradient(std::span<const RankOps> ranks, const std::string& parameter,
                                           std::span<const double> whole, double band) {
  const std::vector<RankGradient> gradients = gradients_of_ranks(ranks, parameter, whole.size());
  if (gradients.empty()) return std::nullopt;
  const auto holds =
      std::ranges::find_if(ranks, [&](const RankOps& rank) { return rank.placements.contains(parameter); });
  const grid::Placement& placement = holds->placements.at(parameter);
  const std::vector<Axis> replicated = axes_in_use(placement.replicated, gradients),
                          partial = axes_in_use(placement.partial, gradients);
  GradientSum found{.must_be = names_of(partial, placement.grid)};
  std::vector<std::vector<Axis>> choices;  // all sets of the partial axes, the whole one first
  for (std::size_t left = std::size_t{1} << partial.size(); left-- > 0;) {
    std::vector<Axis>& over = choices.emplace_back();
    for (std::size_t axis = 0; axis < partial.size(); ++axis)
      if ((left >> axis & 1) != 0) over.push_back(partial[axis]);
  }
  for (const std::vector<Axis>& over : choices) {
    for (const RankGradient& at : gradients) {
      const Multiple multiple = multiple_of(whole, sum_at(gradients, at, replicated, over));
      if (multiple.times == 0 || multiple.distance > band) continue;
      found.over = names_of(over, placement.grid);
      found.times = multiple.times;
      return found;
    }
  }
  found.fits = false;
  return found;
}

}  // namespace megalith::train
