#include "megalith/grid/checks.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::grid {

void require_size(std::string_view name, Index value) {
  if (value >= 1) return;
  throw ConfigError(str("E_SIZE_NOT_POSITIVE: ", name, "=", value, ": every size must be at least 1"));
}

void require_below(std::string_view what, Index value, Index count) {
  if (value >= 0 && value < count) return;
  throw ConfigError(str("[grid] ", what, " = ", value, ": must be in 0..", count - 1));
}

}  // namespace megalith::grid
