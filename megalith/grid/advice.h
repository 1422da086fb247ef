#pragma once
#include <string>
#include <string_view>

#include "megalith/grid/parallel_config.h"

namespace megalith::grid {

/// What to add to the message of an error of resolve(asked): "; the least number of ranks is 8", or an order of axes
/// that is legal. "" where the message says all.
std::string advice(const ParallelSizes& asked, std::string_view error);

}  // namespace megalith::grid
