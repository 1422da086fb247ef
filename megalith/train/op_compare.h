#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/train/op_record.h"

namespace megalith::train {

/// What the layouts of results over tensor-parallel ranks follow from.
struct OpLayouts {
  Index num_layers = 0, vocab_size = 0;
  /// Parts of a row that tp cuts each by itself, by their widths: q, k and v, or gate and up.
  std::vector<std::vector<Index>> blocks = {};
};

/// The first result that differs between two grids.
struct OpDifference {
  OpKey key;
  std::size_t result = 0, results = 1;  ///< which one of the op's
  std::string gradient_of = {};         ///< as in OpValue
  Shape shape;                          ///< of the result on one rank of the first grid
  std::array<Index, Shape::kMaxRank> at{};
  double a = 0, b = 0;  ///< the element with the largest difference
  double largest = 0;   ///< |a - b| over the largest magnitude on the first grid
  /// The ops that lead to it on each grid and that the other grid has not: communication, and other fusions of ops. In
  /// their order; the op itself is the last one.
  std::array<std::vector<std::string>, 2> path;
};

/// How many results were compared.
struct OpComparison {
  Index compared = 0, not_comparable = 0;
  std::optional<OpDifference> first;
};

/// Compares the results of the ops that both grids ran, in the order of a step: forward passes before backward passes,
/// microbatch by microbatch, layer by layer. Ranks of tp hold replicas, slices or, of a GEMM and of gradients, terms of
/// a sum: two results agree if they do in one of these layouts, within `band` of the largest magnitude on the first
/// grid. Results whose sizes fit no layout (rows of experts, sub-microbatches) are not compared.
OpComparison compare_ops(std::span<const RankOps> a, std::span<const RankOps> b, const OpLayouts& layouts, double band);

}  // namespace megalith::train
