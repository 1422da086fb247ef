#include "megalith/train/op_compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "megalith/base/str.h"
#include "megalith/train/op_expert_rows.h"

namespace megalith::train {
namespace {

/// An op on all tensor-parallel ranks of a grid that ran it, in their order. Of experts: on all ranks, in all
/// microbatches.
struct OpOnGrid {
  std::vector<const OpRecord*> parts;
  const RankOps* rank = nullptr;  ///< of the first part
  std::size_t number = 0;         ///< the first part's, of its rank
  Index in_layer = 0;             ///< the first part's, among the ops of its layer and microbatch
  std::vector<OpOfRank> of_experts = {};
};
/// Whether an op belongs to a pass.
bool has_call_site(const OpKey& key) { return key.phase == StepPhase::forward || key.phase == StepPhase::backward; }
/// Whether its results are rows on their way to or from experts, or, of slices of experts, a number for each slice of a
/// row that has come back (which may be as many as there are rows on another grid).
bool moves_rows(const RankOps& rank, const OpRecord& op, bool has_slices) {
  if (op.key.op == "permute_rows") return true;
  if (op.key.op != "sum_rows" || !has_slices) return false;
  const Shape& shape = op.results.front().shape;
  return shape.rank() == 2 && shape[1] == 1 &&
         std::ranges::any_of(op.sources, [&](std::size_t from) { return rank.ops[from].kind != OpKind::local; });
}

using OpsByKey = std::map<OpKey, OpOnGrid>;

OpsByKey ops_by_key(std::span<const RankOps> ranks) {
  std::vector<const RankOps*> order;
  for (const RankOps& rank : ranks) order.push_back(&rank);
  std::ranges::stable_sort(order, {}, [](const RankOps* rank) { return rank->on_dense.tp; });
  const bool has_slices = std::ranges::any_of(ranks, [](const RankOps& rank) { return rank.on_experts.tp > 0; });
  OpsByKey ops;
  for (const RankOps* const rank : order) {
    std::map<std::tuple<StepPhase, Index, Index>, Index> in_layer;
    for (std::size_t number = 0; number < rank->ops.size(); ++number) {
      const OpRecord& op = rank->ops[number];
      if (op.kind != OpKind::local || !has_call_site(op.key)) continue;
      const Index place = in_layer[{op.key.phase, op.key.sample, op.key.layer}]++;
      if (moves_rows(*rank, op, has_slices)) continue;
      OpKey key = op.key;
      if (!op.groups.empty()) {
        key.sample = kAllSamples;
        key.occurrence = 0;
      }
      OpOnGrid& on_grid = ops[key];
      if (on_grid.parts.empty()) on_grid = {.parts = {}, .rank = rank, .number = number, .in_layer = place};
      on_grid.parts.push_back(&op);
      if (!op.groups.empty()) on_grid.of_experts.push_back({&op, rank});
    }
  }
  return ops;
}

/// The layers some of whose experts have clones: the rows of these are elsewhere.
std::set<Index> layers_with_clones(const OpsByKey& ops) {
  std::set<Index> layers;
  for (const auto& [key, op] : ops)
    if (!op.of_experts.empty() && key.parameters.empty()) layers.insert(key.layer);
  return layers;
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
  double times = 0;  ///< as in OpDifference
  bool are_terms = false;
};

/// The k for which b is k a, but for a tenth of their largest difference. 0: there is none.
double multiple_between(const std::vector<double>& a, const std::vector<double>& b, double largest) {
  if (a.size() != b.size() || a.size() < 2) return 0;
  double product = 0, square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    product += a[i] * b[i];
    square += a[i] * a[i];
  }
  const double times = square == 0 ? 0 : product / square;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(b[i] - times * a[i]) <= 0.1 * largest)) return 0;
  return times;
}

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
  if (largest > 0) found.times = multiple_between(a.values, b.values, largest);
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
    if (may_be_terms && take(sum_of(a_), sum_of(b_))) best_->are_terms = true;
    return best_;
  }

 private:
  /// Returns whether it is nearer than all before.
  bool take(const std::optional<Assembled>& a, const std::optional<Assembled>& b) {
    if (!a || !b || !fit(*a, *b, layouts_.vocab_size)) return false;
    const Distance distance = distance_of(*a, *b, layouts_.vocab_size);
    if (best_ && distance.largest >= best_->largest) return false;
    best_ = distance;
    return true;
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

/// Whether the ranks of tp may have terms of a sum: of a row-parallel GEMM, of rows of a split vocabulary, of the
/// results of slices of experts, of the probabilities of their tokens.
bool is_summed_over_tp(const OpKey& key) {
  const std::string_view op = key.op;
  return op.find("matmul") != std::string_view::npos || op == "embedding" || op == "sum_rows" ||
         op == "sum_probabilities" || (op == "add" && key.layer < 0);
}

Parts results_of(const OpOnGrid& op, std::size_t result) {
  Parts parts;
  for (const OpRecord* const part : op.parts)
    if (result < part->results.size() && !part->results[result].values.empty()) parts.push_back(&part->results[result]);
  return parts;
}

/// Where an op stands in a step. Those of experts come after what all microbatches have run before them.
auto order_of(const OpKey& key, const OpOnGrid& op) {
  const Index depth = key.phase == StepPhase::backward ? -key.layer : key.layer;
  return std::tuple(key.phase, depth, op.in_layer, key.sample, op.number);
}

/// The ops of which all results agree, and those of them whose results are terms of sums over a grid's ranks.
struct AgreeingOps {
  std::set<OpKey> all;
  std::array<std::set<OpKey>, 2> terms;
};

/// The ops from the last ones whose results agree to this one.
struct OpPath {
  std::vector<std::string> names, unsummed;  ///< as in OpDifference
};

OpPath path_to(const OpOnGrid& op, const AgreeingOps& agree, std::size_t grid) {
  std::set<std::size_t> on_path, open = {op.number}, terms;
  while (!open.empty()) {
    const std::size_t number = *open.begin();
    open.erase(open.begin());
    if (!on_path.insert(number).second) continue;
    for (const std::size_t source : op.rank->ops[number].sources) {
      const OpRecord& record = op.rank->ops[source];
      const bool is_of_pass = record.key.phase != StepPhase::optimizer && record.key.phase != StepPhase::other;
      if (is_of_pass && !agree.all.contains(record.key) && !on_path.contains(source)) open.insert(source);
      if (agree.terms[grid].contains(record.key)) terms.insert(source);
    }
  }
  OpPath path;
  for (const std::size_t number : on_path) path.names.push_back(op.rank->ops[number].key.op);
  const auto is_communication = [&](std::size_t number) { return op.rank->ops[number].kind != OpKind::local; };
  if (std::ranges::any_of(on_path, is_communication)) return path;
  for (const std::size_t number : terms) path.unsummed.push_back(op.rank->ops[number].key.op);
  return path;
}

/// One result of an op of both grids, or nothing if its layouts do not fit.
struct ResultDistance {
  ExpertDistance by = {};
  Shape shape = {};
  std::string gradient_of = {};
  double times = 0;
};

std::optional<ResultDistance> distance_of_result(const OpLayouts& layouts, const OpOnGrid& a, const OpOnGrid& b,
                                                 const OpKey& key, std::size_t result, double band) {
  const Parts parts_a = results_of(a, result), parts_b = results_of(b, result);
  const OpValue& first = *parts_a.front();
  ResultDistance found;
  found.gradient_of = first.gradient_of;
  if (!a.of_experts.empty()) {
    auto distance = distance_of_experts(a.of_experts, b.of_experts, result, band);
    if (!distance) return std::nullopt;
    found.by = *std::move(distance);
    found.shape = found.by.shape;
    return found;
  }
  const bool may_be_terms = is_summed_over_tp(key) || !first.gradient_of.empty();
  const auto distance = ResultComparison(layouts, parts_a, parts_b).best(may_be_terms);
  if (!distance) return std::nullopt;
  found.by.largest = distance->largest;
  found.by.at = index_in(distance->shape, distance->at);
  found.by.a = distance->a;
  found.by.b = distance->b;
  found.by.are_terms = distance->are_terms;
  found.shape = first.shape;
  found.times = distance->times;
  return found;
}

/// Whether several ranks of a tensor-parallel group, or of one of experts, ran the op.
bool is_on_several(const OpOnGrid& op) {
  if (op.of_experts.empty()) return op.parts.size() > 1;
  return std::ranges::any_of(op.of_experts, [](const OpOfRank& run) { return run.rank->on_experts.tp > 0; });
}

/// Both grids have the result, and it is the same thing on both.
bool has_result(const OpOnGrid& a, const OpOnGrid& b, std::size_t result) {
  const Parts parts_a = results_of(a, result), parts_b = results_of(b, result);
  return !parts_a.empty() && !parts_b.empty() && parts_a.front()->gradient_of == parts_b.front()->gradient_of;
}

}  // namespace

OpComparison compare_ops(const ComparedOps& ops, const OpLayouts& layouts, double band) {
  const OpsByKey of_a = ops_by_key(ops.a), of_b = ops_by_key(ops.b), of_wide = ops_by_key(ops.wide);
  std::vector<OpsByKey::const_iterator> order;
  for (auto op = of_a.begin(); op != of_a.end(); ++op)
    if (of_b.contains(op->first)) order.push_back(op);
  std::ranges::sort(order, {}, [](const auto& op) { return order_of(op->first, op->second); });
  const std::set<Index> cloned = layers_with_clones(of_a), cloned_too = layers_with_clones(of_b);
  OpComparison comparison;
  AgreeingOps agree;
  for (const auto& entry : order) {
    const auto& [key, on_a] = *entry;
    const OpOnGrid& on_b = of_b.at(key);
    const bool has_clones = !on_a.of_experts.empty() && (cloned.contains(key.layer) || cloned_too.contains(key.layer));
    bool all_agree = true, are_terms = false;
    const std::size_t results = on_a.parts.front()->results.size();
    for (std::size_t result = 0; result < results; ++result) {
      if (!has_result(on_a, on_b, result)) continue;
      std::optional<ResultDistance> distance;
      if (!has_clones) distance = distance_of_result(layouts, on_a, on_b, key, result, band);
      if (!distance) {
        ++comparison.not_comparable;
        all_agree = false;
        continue;
      }
      ++comparison.compared;
      are_terms = are_terms || distance->by.are_terms;
      if (distance->by.largest <= band) continue;
      double wider = band;
      if (const auto wide = of_wide.find(key); wide != of_wide.end()) {
        const auto rounding = distance_of_result(layouts, on_a, wide->second, key, result, band);
        if (rounding && std::isfinite(rounding->by.largest)) wider = std::max(band, kOfRounding * rounding->by.largest);
      }
      if (distance->by.largest <= wider) continue;
      const OpPath path_a = path_to(on_a, agree, 0), path_b = path_to(on_b, agree, 1);
      comparison.first = OpDifference{.key = key,
                                      .result = result,
                                      .results = results,
                                      .gradient_of = distance->gradient_of,
                                      .shape = distance->shape,
                                      .at = distance->by.at,
                                      .a = distance->by.a,
                                      .b = distance->by.b,
                                      .largest = distance->by.largest,
                                      .band = wider,
                                      .times = distance->times,
                                      .note = distance->by.note,
                                      .path = {path_a.names, path_b.names},
                                      .unsummed = {path_a.unsummed, path_b.unsummed}};
      return comparison;
    }
    if (!all_agree) continue;
    for (std::size_t grid = 0; grid < agree.terms.size(); ++grid) {
      const OpOnGrid& side = grid == 0 ? on_a : on_b;
      for (const OpRecord* const part : side.parts) {
        agree.all.insert(part->key);
        if (are_terms && is_on_several(side)) agree.terms[grid].insert(part->key);
      }
    }
  }
  return comparison;
}

}  // namespace megalith::train
