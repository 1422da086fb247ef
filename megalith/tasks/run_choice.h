#pragma once
#include <cstddef>
#include <span>

namespace megalith::tasks {

/// The number of the run with the highest dev score, the first one of equal scores. Throws InternalError for none.
std::size_t best_run(std::span<const double> scores);

/// The number of the median run: in ascending order of the scores, equal ones in their order, that with number
/// (n - 1) / 2 from 0. So the median is always a run, of an even number the lower one of the middle two. Throws
/// InternalError for none.
std::size_t median_run(std::span<const double> scores);

}  // namespace megalith::tasks
