#pragma once
#include <string>

#include "megalith/base/types.h"
#include "megalith/checkpoint/choose.h"

namespace megalith::checkpoint {

/// [checkpoint] of a recipe, resolved.
struct CheckpointConfig {
  std::string dir;       ///< empty: OUT/checkpoints
  Index interval = 0;    ///< steps between saves; 0: not by steps
  double every_s = 600;  ///< most seconds of training between saves; 0: not by time
  Index keep = 2;        ///< newest checkpoints kept, at least 2
  OnCorrupt on_corrupt = OnCorrupt::previous;
};

}  // namespace megalith::checkpoint
