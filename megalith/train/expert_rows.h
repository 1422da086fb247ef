#pragma once
#include <string>

#include "megalith/train/recompute_choices.h"

namespace megalith::train {

/// The bytes of the buffers of rows that arrive at experts.
Index expert_rows_in(const BytesByOwner& bytes);

/// For a rank of a run that does not fit, `missing` bytes short, if these buffers are the reason (it would fit
/// without them, or nothing takes more): "; of this, expert rows take N ...", with the keys that change it. Else "".
/// `bytes`: of the rank; `planned`: with other plans.
std::string expert_rows_advice(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned,
                               Index missing);

}  // namespace megalith::train
