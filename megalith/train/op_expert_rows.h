#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>

#include "megalith/train/op_record.h"

namespace megalith::train {

/// An op over rows of experts, on one rank of a grid.
struct OpOfRank {
  const OpRecord* op = nullptr;
  const RankOps* rank = nullptr;
};

/// How far two grids are apart in one result of such an op.
struct ExpertDistance {
  double largest = 0;  ///< relative to the largest magnitude on the first grid; infinite for other numbers of rows
  Shape shape;         ///< of the expert's rows, or of the parameter
  std::array<Index, Shape::kMaxRank> at{};
  double a = 0, b = 0;
  bool are_terms = false;  ///< ranks of etp have terms of a sum
  std::string note = {};   ///< which expert, and where the numbers of rows differ how many each grid has
};

/// Compares a result of an op over rows of experts between two grids. `a`, `b`: all runs of the op in a step. Which
/// rank computes a row, in which microbatch and at which place follows from the grid. So the rows of one expert are
/// compared as a set: rows that agree within `band` cancel out, and what is left is paired by distance. Ranks of etp
/// have slices of a row or terms of a sum. Gradients are those of the whole step, at their places in the parameter.
/// Nothing if the result is neither, and for rows with a band in which rows of other tokens may lie, as in 16 bits.
std::optional<ExpertDistance> distance_of_experts(std::span<const OpOfRank> a, std::span<const OpOfRank> b,
                                                  std::size_t result, double band);

}  // namespace megalith::train
