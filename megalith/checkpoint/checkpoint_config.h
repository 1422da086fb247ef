#pragma once
#include <string>

#include "megalith/base/types.h"
#include "megalith/checkpoint/choose.h"

namespace megalith::checkpoint {

/// [checkpoint] of a recipe, resolved.
struct CheckpointConfig {
  std::string dir;     ///< empty: OUT/checkpoints
  Index interval = 0;  ///< steps between saves; 0: only at the end and on a signal
  Index keep = 2;      ///< newest checkpoints kept, at least 2
  OnCorrupt on_corrupt = OnCorrupt::previous;
};

}  // namespace megalith::checkpoint
