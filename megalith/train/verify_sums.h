#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/train/op_record.h"

namespace megalith::train {

/// What a gradient after a step is: `times` the sum, over the ranks along these axes, of what the passes have given.
struct GradientSum {
  std::vector<std::string> over = {}, must_be = {};  ///< axes with several ranks: "tp", "dp", "pp", "etp", "edp"
  double times = 1;
  bool fits = true;  ///< false: no such sum is within the band, and `over` has no meaning

  bool is_right(double band) const;
};

/// Compares the gradient of a parameter (the whole tensor, after the sums over ranks) with the sums of what the passes
/// of all ranks of a grid have added to it. `band`: relative to its largest magnitude. Nothing if no rank has recorded
/// it.
std::optional<GradientSum> sum_of_gradient(std::span<const RankOps> ranks, const std::string& parameter,
                                           std::span<const double> whole, double band);

}  // namespace megalith::train
