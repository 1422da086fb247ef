#pragma once
#include <string>

#include "megalith/base/types.h"
#include "megalith/checkpoint/choose.h"

namespace megalith::checkpoint {

/// Section [checkpoint] of a recipe, resolved.
struct CheckpointConfig {
  std::string dir;       ///< empty: OUT/checkpoints
  Index interval = 0;    ///< steps between saves; 0: saves do not depend on steps
  double every_s = 600;  ///< largest time between saves, in seconds of training; 0: saves do not depend on time
  Index keep = 2;        ///< newest checkpoints that are kept, at least 2
  OnCorrupt on_corrupt = OnCorrupt::previous;
};

}  // namespace megalith::checkpoint
