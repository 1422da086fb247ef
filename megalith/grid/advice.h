#pragma once
#include <string>
#include <string_view>

#include "megalith/grid/parallel_config.h"

namespace megalith::grid {

/// What to add to the message of an error of resolve(asked): "; the least number of ranks is 8", or an order of axes
/// that is legal. "" where there is nothing to add.
std::string advice(const ParallelSizes& asked, std::string_view error);

/// The message of an error of resolve() without its code.
std::string_view without_code(std::string_view error);

/// The order with tp as the fastest axis: with etp = tp an expert's ranks along tp are then those of the dense layers.
std::string tp_first(std::string_view order);

}  // namespace megalith::grid
