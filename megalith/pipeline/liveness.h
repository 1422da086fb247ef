#pragma once
#include "megalith/pipeline/lowering.h"

namespace megalith::pipeline {

/// Walks the lowered list of a stage and proves that no slot or buffer ever serves two live microbatches, that
/// every compute action finds its inputs where it says (its chunk's parameters too, where the list gathers them), and
/// that everything is given back at the end of the step.
/// Throws InternalError naming stage, action index, the action, and what it found.
void check_liveness(const ScheduleShape& shape, int stage, const LoweredSchedule& lowered);

}  // namespace megalith::pipeline
