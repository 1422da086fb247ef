#pragma once
#include <string>

#include "megalith/base/str.h"
#include "megalith/base/types.h"

namespace megalith::support {

/// train.batch_ramp with four sizes: four steps of the first one, two of twice as many samples, two of three times,
/// then four times.
inline std::string ramp_from(Index start) { return str(start, ':', 4 * start, ':', 12 * start); }
inline constexpr Index kRampSizes = 4;

}  // namespace megalith::support
