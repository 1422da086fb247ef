#pragma once
#include <string_view>

#include "megalith/base/types.h"

namespace megalith::grid {

/// Throws ConfigError "E_SIZE_NOT_POSITIVE: name=value: ..." unless value >= 1.
void require_size(std::string_view name, Index value);
/// Throws ConfigError "[grid] what = value: must be in 0..count-1" unless value is in [0, count).
void require_below(std::string_view what, Index value, Index count);

}  // namespace megalith::grid
