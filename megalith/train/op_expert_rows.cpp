#include "megalith/train/op_expert_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "megalith/base/str.h"
#include "megalith/checkpoint/box.h"

namespace megalith::train {
namespace {

constexpr double kMaxRowsBand = 1e-3;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Of ranks of etp: the same values, slices of a row, or terms of a sum.
enum class EtpLayout : std::uint8_t { replicas, columns, terms };

using ExpertRow = std::vector<double>;
using RowsByExpert = std::map<Index, std::vector<ExpertRow>>;

const OpValue* result_of(const OpOfRank& run, std::size_t result) {
  const std::vector<OpValue>& results = run.op->results;
  return result < results.size() && !results[result].values.empty() ? &results[result] : nullptr;
}

double largest_of(const RowsByExpert& rows) {
  double largest = 0;
  for (const auto& [expert, all] : rows)
    for (const ExpertRow& row : all)
      for (const double value : row)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

/// The runs of the ranks of one etp group, which have the same rows, by the group and by their number on a rank.
std::vector<std::vector<OpOfRank>> by_slices(std::span<const OpOfRank> runs) {
  std::map<const RankOps*, int> counts;
  std::map<std::tuple<int, int, int, int>, std::vector<OpOfRank>> found;
  for (const OpOfRank& run : runs) {
    const grid::PerAxis& place = run.rank->on_experts;
    found[{place.pp, place.dp, place.ep, counts[run.rank]++}].push_back(run);
  }
  std::vector<std::vector<OpOfRank>> all;
  for (auto& [place, slices] : found) {
    std::ranges::stable_sort(slices, {}, [](const OpOfRank& run) { return run.rank->on_experts.tp; });
    all.push_back(std::move(slices));
  }
  return all;
}

ExpertRow joined_row(const std::vector<OpOfRank>& slices, std::size_t result, EtpLayout layout, Index row) {
  ExpertRow whole;
  for (const OpOfRank& slice : slices) {
    const OpValue& value = slice.op->results[result];
    const Index width = value.shape[1];
    const auto from = value.values.begin() + row * width;
    if (layout == EtpLayout::columns || whole.empty())
      whole.insert(whole.end(), from, from + width);
    else if (layout == EtpLayout::terms)
      std::transform(from, from + width, whole.begin(), whole.begin(), std::plus<>());
  }
  return whole;
}

RowsByExpert rows_by_expert(std::span<const OpOfRank> runs, std::size_t result, EtpLayout layout) {
  RowsByExpert rows;
  for (const std::vector<OpOfRank>& slices : by_slices(runs))
    for (const RowsOfExpert& group : slices.front().op->groups)
      for (Index row = group.begin; row < group.begin + group.count; ++row)
        rows[group.expert].push_back(joined_row(slices, result, layout, row));
  return rows;
}

/// The largest difference of two rows, and its column.
std::pair<double, Index> apart(const ExpertRow& a, const ExpertRow& b) {
  double largest = 0;
  Index at = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double by = std::abs(a[i] - b[i]), counted = std::isnan(by) ? kInfinite : by;
    if (counted <= largest) continue;
    largest = counted;
    at = static_cast<Index>(i);
  }
  return {largest, at};
}

/// Removes pairs of rows that are within `limit`. A row of `b` near one of `a` has nearly the same first column.
void cancel(std::vector<std::size_t>& of_a, std::vector<std::size_t>& of_b, const std::vector<ExpertRow>& a,
            const std::vector<ExpertRow>& b, double limit) {
  const auto first_of = [&](std::size_t row) { return b[row].front(); };
  std::ranges::sort(of_b, {}, first_of);
  std::vector<std::uint8_t> is_taken(of_b.size(), 0);
  std::erase_if(of_a, [&](std::size_t row) {
    std::optional<std::size_t> nearest;
    double least = limit;
    auto other = std::ranges::lower_bound(of_b, a[row].front() - limit, {}, first_of);
    for (; other != of_b.end() && first_of(*other) <= a[row].front() + limit; ++other) {
      const auto place = static_cast<std::size_t>(other - of_b.begin());
      if (is_taken[place] != 0) continue;
      const double by = apart(a[row], b[*other]).first;
      if (by > least || (nearest && by == least)) continue;
      nearest = place;
      least = by;
    }
    if (nearest) is_taken[*nearest] = 1;
    return nearest.has_value();
  });
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < of_b.size(); ++i)
    if (is_taken[i] == 0) left.push_back(of_b[i]);
  of_b = std::move(left);
}

bool has_numbers_only(const std::vector<ExpertRow>& rows) {
  return std::ranges::all_of(rows, [](const ExpertRow& row) {
    return std::ranges::none_of(row, [](double value) { return std::isnan(value); });
  });
}

/// The rows of one expert, as sets.
ExpertDistance distance_of_sets(Index expert, const std::vector<ExpertRow>& a, const std::vector<ExpertRow>& b,
                                double scale, double band) {
  ExpertDistance found;
  if (a.size() != b.size()) {
    found.largest = kInfinite;
    found.note = str("expert ", expert, " has ", a.size(), " rows on A, ", b.size(), " on B");
    return found;
  }
  if (a.empty()) return found;
  found.shape = {std::ssize(a), std::ssize(a.front())};
  std::vector<std::size_t> of_a(a.size()), of_b(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) of_a[i] = of_b[i] = i;
  if (has_numbers_only(a) && has_numbers_only(b)) cancel(of_a, of_b, a, b, band * scale);
  for (const std::size_t row : of_a) {
    const auto nearest =
        std::ranges::min_element(of_b, {}, [&](std::size_t other) { return apart(a[row], b[other]).first; });
    const auto [by, column] = apart(a[row], b[*nearest]);
    const double largest = by == 0 ? 0 : scale == 0 ? kInfinite : by / scale;
    if (largest > found.largest) {
      found.largest = largest;
      found.at = {static_cast<Index>(row), column};
      found.a = a[row][static_cast<std::size_t>(column)];
      found.b = b[*nearest][static_cast<std::size_t>(column)];
      found.note = str("a row of expert ", expert, " that B has not, and the nearest of those that A has not");
    }
    of_b.erase(nearest);
  }
  return found;
}

std::optional<ExpertDistance> distance_of_rows(const RowsByExpert& a, const RowsByExpert& b, double band) {
  const double scale = largest_of(a);
  ExpertDistance worst;
  static const std::vector<ExpertRow> none;
  std::map<Index, bool> experts;
  for (const RowsByExpert* const side : {&a, &b})
    for (const auto& [expert, rows] : *side) experts[expert] = true;
  for (const auto& [expert, is_there] : experts) {
    const auto in_a = a.find(expert), in_b = b.find(expert);
    const std::vector<ExpertRow>&rows_a = in_a == a.end() ? none : in_a->second,
          &rows_b = in_b == b.end() ? none : in_b->second;
    if (!rows_a.empty() && !rows_b.empty() && rows_a.front().size() != rows_b.front().size()) return std::nullopt;
    ExpertDistance distance = distance_of_sets(expert, rows_a, rows_b, scale, band);
    if (distance.largest > worst.largest) worst = std::move(distance);
  }
  return worst;
}

/// What all runs have added to a gradient, at the places of the whole parameter.
std::vector<double> whole_gradient(std::span<const OpOfRank> runs, std::size_t result) {
  std::vector<double> whole;
  for (const OpOfRank& run : runs) {
    const OpValue* const value = result_of(run, result);
    if (value == nullptr || value->slice.name.empty()) continue;
    whole.resize(static_cast<std::size_t>(value->slice.global.numel()));
    const checkpoint::Runs places(checkpoint::box_of(value->slice), {{}, value->slice.global});
    for (Index i = 0, from = 0; i < places.count(); ++i)
      for (Index k = 0; k < places.length(); ++k, ++from)
        whole[static_cast<std::size_t>(places.start(i) + k)] += value->values[static_cast<std::size_t>(from)];
  }
  return whole;
}

ExpertDistance distance_of_gradients(const Shape& shape, const ExpertRow& a, const ExpertRow& b) {
  ExpertDistance found{.largest = 0, .shape = shape};
  const auto [by, at] = apart(a, b);
  double scale = 0;
  for (const double value : a)
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  found.largest = by == 0 ? 0 : scale == 0 ? kInfinite : by / scale;
  Index left = at;
  for (int d = shape.rank(); d-- > 0; left /= shape[d]) found.at[static_cast<std::size_t>(d)] = left % shape[d];
  found.a = a[static_cast<std::size_t>(at)];
  found.b = b[static_cast<std::size_t>(at)];
  found.note = str("expert ", found.at[0]);
  return found;
}

}  // namespace

std::optional<ExpertDistance> distance_of_experts(std::span<const OpOfRank> a, std::span<const OpOfRank> b,
                                                  std::size_t result, double band) {
  const auto has_result = [&](const OpOfRank& run) { return result_of(run, result) != nullptr; };
  if (!std::ranges::all_of(a, has_result) || !std::ranges::all_of(b, has_result)) return std::nullopt;
  const OpValue& first = *result_of(a.front(), result);
  if (!first.slice.name.empty()) {
    const ExpertRow of_a = whole_gradient(a, result), of_b = whole_gradient(b, result);
    if (of_a.size() != of_b.size()) return std::nullopt;
    return distance_of_gradients(first.slice.global, of_a, of_b);
  }
  if (first.shape.rank() != 2 || band > kMaxRowsBand) return std::nullopt;
  std::optional<ExpertDistance> best;
  for (const EtpLayout layout : {EtpLayout::replicas, EtpLayout::columns, EtpLayout::terms}) {
    auto distance = distance_of_rows(rows_by_expert(a, result, layout), rows_by_expert(b, result, layout), band);
    if (!distance || (best && distance->largest >= best->largest)) continue;
    best = std::move(distance);
    best->are_terms = layout == EtpLayout::terms;
  }
  return best;
}

}  // namespace megalith::train
