#include "megalith/train/op_compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "megalith/base/str.h"

namespace megalith::train {
namespace {

/// An op on all tensor-parallel ranks of a grid that ran it, in their order.
struct OpOnGrid {
  std::vector<const OpRecord*> parts;
  const RankOps* rank = nullptr;  ///< of the first part
  std::size_t number = 0;         ///< the first part's, of its rank
};
/// Whether an op belongs to a pass.
bool has_call_site(const OpKey& key) { return key.phase == StepPhase::forward || key.phase == StepPhase::backward; }

using OpsByKey = std::map<OpKey, OpOnGrid>;

OpsByKey ops_by_key(std::span<const RankOps> ranks) {
  std::vector<const RankOps*> order;
  for (const RankOps& rank : ranks) order.push_back(&rank);
  std::ranges::stable_sort(order, {}, &RankOps::tp_rank);
  OpsByKey ops;
  for (const RankOps* const rank : order) {
    for (std::size_t number = 0; number < rank->ops.size(); ++number) {
      const OpRecord& op = rank->ops[number];
      if (op.kind != OpKind::local || !has_call_site(op.key)) continue;
      OpOnGrid& on_grid = ops[op.key];
      if (on_grid.parts.empty()) on_grid = {.parts = {}, .rank = rank, .number = number};
      on_grid.parts.push_back(&op);
    }
  }
  return ops;
}

/// A whole result, or a replica, with its shape.
struct Assembled {
  Shape shape;
  std::vector<double> values;
};

using Parts = std::vector<const OpValue*>;

bool are_alike(const Parts& parts) {
  return std::ranges::all_of(parts, [&](const OpValue* part) { return part->shape == parts.front()->shape; });
}

/// Joins slices along a dimension. With several `blocks` every slice has its part of each.
std::optional<Assembled> concatenated(const Parts& parts, int dim, const std::vector<Index>& blocks = {1}) {
  const Shape& local = parts.front()->shape;
  const auto count = static_cast<Index>(parts.size());
  Index widths = 0, outer = 1, inner = 1;
  for (const Index block : blocks) widths += block;
  if (widths == 0 || (blocks.size() > 1 && local[dim] * count % widths != 0)) return std::nullopt;
  for (int d = 0; d < dim; ++d) outer *= local[d];
  for (int d = dim + 1; d < local.rank(); ++d) inner *= local[d];
  Assembled whole{local, {}};
  whole.shape.set(dim, local[dim] * count);
  whole.values.reserve(static_cast<std::size_t>(whole.shape.numel()));
  for (Index row = 0; row < outer; ++row) {
    Index begin = 0;
    for (const Index block : blocks) {
      const Index width = blocks.size() == 1 ? local[dim] : local[dim] * block / widths;
      for (const OpValue* const part : parts) {
        const auto from = part->values.begin() + (row * local[dim] + begin) * inner;
        whole.values.insert(whole.values.end(), from, from + width * inner);
      }
      begin += width;
    }
    if (begin != local[dim]) return std::nullopt;
  }
  return whole;
}

Assembled sum_of(const Parts& parts) {
  Assembled sum{parts.front()->shape, parts.front()->values};
  for (std::size_t k = 1; k < parts.size(); ++k)
    std::ranges::transform(sum.values, parts[k]->values, sum.values.begin(), std::plus<>());
  return sum;
}

/// The largest difference of two wholes.
struct Distance {
  double largest = std::numeric_limits<double>::infinity();  ///< relative
  std::size_t at = 0;
  double a = 0, b = 0;
  Shape shape;
};

/// Only the first `columns` of rows are compared, if there are more: logits have padding columns.
Distance distance_of(const Assembled& a, const Assembled& b, Index columns) {
  const Index width_a = a.shape.rank() == 0 ? 1 : a.shape[a.shape.rank() - 1];
  const Index width_b = b.shape.rank() == 0 ? 1 : b.shape[b.shape.rank() - 1];
  const Index width = width_a == width_b ? width_a : columns;
  Distance found{.largest = 0, .at = 0, .a = 0, .b = 0, .shape = a.shape};
  double scale = 0, largest = 0;
  const Index rows = width_a == 0 ? 0 : std::ssize(a.values) / width_a;
  for (Index row = 0; row < rows; ++row) {
    for (Index column = 0; column < width; ++column) {
      const auto i = static_cast<std::size_t>(row * width_a + column),
                 k = static_cast<std::size_t>(row * width_b + column);
      if (std::isfinite(a.values[i])) scale = std::max(scale, std::abs(a.values[i]));
      const double by = std::abs(a.values[i] - b.values[k]);
      if (a.values[i] == b.values[k] || (std::isnan(a.values[i]) && std::isnan(b.values[k])) || by <= largest) continue;
      largest = std::isnan(by) ? std::numeric_limits<double>::infinity() : by;
      found.at = i;
      found.a = a.values[i];
      found.b = b.values[k];
    }
  }
  found.largest = largest == 0 ? 0 : scale == 0 ? std::numeric_limits<double>::infinity() : largest / scale;
  return found;
}

bool fit(const Assembled& a, const Assembled& b, Index vocab_size) {
  if (a.shape.rank() != b.shape.rank()) return a.shape.numel() == b.shape.numel();
  if (a.shape == b.shape) return true;
  const int last = a.shape.rank() - 1;
  for (int d = 0; d < last; ++d)
    if (a.shape[d] != b.shape[d]) return false;
  return last >= 0 && std::min(a.shape[last], b.shape[last]) >= vocab_size;
}

/// Compares one result of an op in every layout. Nothing if none fits.
class ResultComparison {
 public:
  ResultComparison(const OpLayouts& layouts, const Parts& a, const Parts& b) : layouts_(layouts), a_(a), b_(b) {}

  std::optional<Distance> best(bool may_be_terms) {
    if (!are_alike(a_) || !are_alike(b_)) return std::nullopt;
    replicas();
    const int rank = a_.front()->shape.rank();
    for (int dim = 0; dim < rank; ++dim) slices(dim, {1});
    if (rank > 0)
      for (const std::vector<Index>& blocks : layouts_.blocks) slices(rank - 1, blocks);
    if (may_be_terms) take(sum_of(a_), sum_of(b_));
    return best_;
  }

 private:
  void take(const std::optional<Assembled>& a, const std::optional<Assembled>& b) {
    if (!a || !b || !fit(*a, *b, layouts_.vocab_size)) return;
    const Distance distance = distance_of(*a, *b, layouts_.vocab_size);
    if (!best_ || distance.largest < best_->largest) best_ = distance;
  }
  /// Every replica must agree: the worst one counts.
  void replicas() {
    const Assembled first{a_.front()->shape, a_.front()->values};
    std::optional<Distance> worst;
    for (const Parts* const parts : {&a_, &b_}) {
      for (const OpValue* const part : *parts) {
        const Assembled replica{part->shape, part->values};
        if (!fit(first, replica, layouts_.vocab_size)) return;
        const Distance distance = distance_of(first, replica, layouts_.vocab_size);
        if (!worst || distance.largest > worst->largest) worst = distance;
      }
    }
    if (!best_ || worst->largest < best_->largest) best_ = worst;
  }
  void slices(int dim, const std::vector<Index>& blocks) {
    const bool are_cut = a_.size() > 1 || b_.size() > 1;
    if (are_cut && dim < b_.front()->shape.rank()) take(concatenated(a_, dim, blocks), concatenated(b_, dim, blocks));
  }

  const OpLayouts& layouts_;
  const Parts &a_, &b_;
  std::optional<Distance> best_;
};

std::array<Index, Shape::kMaxRank> index_in(const Shape& shape, std::size_t element) {
  std::array<Index, Shape::kMaxRank> index{};
  auto left = static_cast<Index>(element);
  for (int d = shape.rank(); d-- > 0;) {
    index[static_cast<std::size_t>(d)] = left % shape[d];
    left /= shape[d];
  }
  return index;
}

/// Whether the ranks of tp may have terms of a sum: of a row-parallel GEMM, of rows of a split vocabulary.
bool is_summed_over_tp(std::string_view op) { return op.find("matmul") != std::string_view::npos || op == "embedding"; }

Parts results_of(const OpOnGrid& op, std::size_t result) {
  Parts parts;
  for (const OpRecord* const part : op.parts)
    if (result < part->results.size() && !part->results[result].values.empty()) parts.push_back(&part->results[result]);
  return parts;
}

/// Where an op stands in a step.
auto order_of(const OpKey& key, const OpOnGrid& op) {
  const Index depth = key.phase == StepPhase::backward ? -key.layer : key.layer;
  return std::tuple(key.phase, key.sample, depth, op.number);
}

/// The ops from the last ones whose results agree to this one, with a rank's own numbers.
std::vector<std::string> path_to(const OpOnGrid& op, const std::set<OpKey>& agree) {
  std::set<std::size_t> on_path, open = {op.number};
  while (!open.empty()) {
    const std::size_t number = *open.begin();
    open.erase(open.begin());
    if (!on_path.insert(number).second) continue;
    for (const std::size_t source : op.rank->ops[number].sources) {
      const OpRecord& record = op.rank->ops[source];
      const bool is_of_pass = record.key.phase != StepPhase::optimizer && record.key.phase != StepPhase::other;
      if (is_of_pass && !agree.contains(record.key) && !on_path.contains(source)) open.insert(source);
    }
  }
  std::vector<std::string> names;
  for (const std::size_t number : on_path) names.push_back(op.rank->ops[number].key.op);
  return names;
}

}  // namespace

OpComparison compare_ops(std::span<const RankOps> a, std::span<const RankOps> b, const OpLayouts& layouts,
                         double band) {
  const OpsByKey of_a = ops_by_key(a), of_b = ops_by_key(b);
  std::vector<OpsByKey::const_iterator> order;
  for (auto op = of_a.begin(); op != of_a.end(); ++op)
    if (of_b.contains(op->first)) order.push_back(op);
  std::ranges::sort(order, {}, [](const auto& op) { return order_of(op->first, op->second); });
  OpComparison comparison;
  std::set<OpKey> agree;
  for (const auto& entry : order) {
    const auto& [key, on_a] = *entry;
    const OpOnGrid& on_b = of_b.at(key);
    bool all_agree = true;
    const std::size_t results = on_a.parts.front()->results.size();
    for (std::size_t result = 0; result < results; ++result) {
      const Parts parts_a = results_of(on_a, result), parts_b = results_of(on_b, result);
      if (parts_a.empty() || parts_b.empty() || parts_a.front()->gradient_of != parts_b.front()->gradient_of) continue;
      const OpValue& first = *parts_a.front();
      const bool may_be_terms = is_summed_over_tp(key.op) || !first.gradient_of.empty();
      const auto distance = ResultComparison(layouts, parts_a, parts_b).best(may_be_terms);
      if (!distance) {
        ++comparison.not_comparable;
        all_agree = false;
        continue;
      }
      ++comparison.compared;
      if (distance->largest <= band) continue;
      comparison.first = OpDifference{.key = key,
                                      .result = result,
                                      .results = results,
                                      .gradient_of = first.gradient_of,
                                      .shape = first.shape,
                                      .at = index_in(distance->shape, distance->at),
                                      .a = distance->a,
                                      .b = distance->b,
                                      .largest = distance->largest,
                                      .path = {path_to(on_a, agree), path_to(on_b, agree)}};
      return comparison;
    }
    if (all_agree) agree.insert(key);
  }
  return comparison;
}

}  // namespace megalith::train
