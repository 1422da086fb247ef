#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/train/op_record.h"

namespace megalith::train {

/// Two runs in 16 bits agree if they are apart by at most so many times the distance of the first one from the same run
/// in a wider precision: where that is d, the second one may be 3 d from it.
inline constexpr double kOfRounding = 4;

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
  double a = 0, b = 0;           ///< the element with the largest difference
  double largest = 0, band = 0;  ///< |a - b| over the largest magnitude on the first grid
  double times = 0;              ///< the second grid has so many times the values of the first; 0: it has not
  std::string note = {};         ///< of rows of experts: ExpertDistance
  /// The ops that lead to it on each grid and that the other grid has not: communication, and other fusions of ops. In
  /// their order; the op itself is the last one.
  std::array<std::vector<std::string>, 2> path;
  /// The ops whose results are terms of a sum over ranks of tp or etp, and which it reads without that sum.
  std::array<std::vector<std::string>, 2> unsummed = {};
};

/// How many results were compared.
struct OpComparison {
  Index compared = 0, not_comparable = 0;
  std::optional<OpDifference> first;
};

/// The ops of both grids; `wide`, unless it is empty, of the first grid in a wider precision.
struct ComparedOps {
  std::span<const RankOps> a, b, wide = {};
};

/// Compares the results of the ops that both grids ran: forward passes before backward passes, layer by layer, and op
/// by op of a layer, each for all microbatches. Ranks of tp hold replicas, slices or, of a GEMM and of gradients, terms
/// of a sum: two results agree if they do in one of these layouts, within `band` of the largest magnitude on the first
/// grid. Products over rows of experts are compared as distance_of_experts() does, where no expert has clones. Results
/// whose sizes fit no layout (sub-microbatches) are not compared, and rows on their way to experts neither: their order
/// follows from the dispatcher. With `wide` a band is at least kOfRounding times the distance of `a` from it.
OpComparison compare_ops(const ComparedOps& ops, const OpLayouts& layouts, double band);

}  // namespace megalith::train
