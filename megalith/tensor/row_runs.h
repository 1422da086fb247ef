#pragma once
#include "megalith/base/types.h"

namespace megalith {

/// A matrix among the rows of a larger one, such as k among those of a qkv weight: runs of `run` rows, of which one
/// begins every `stride` rows, the first at row `first`. `stride` divides the rows of the larger one.
struct RowRuns {
  Index run = 0, stride = 0, first = 0;
  bool operator==(const RowRuns&) const = default;
};

}  // namespace megalith
