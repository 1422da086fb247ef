#pragma once
#include <string>

#include "megalith/pipeline/lowering.h"

namespace megalith::apps {

/// SVG of one stage's capture order: a column for each forward (F) and backward (B) of a chunk, as
/// "F<microbatch>.<chunk>"; a row for each slot, held from a forward to its backward. `lowered`: the stage's training
/// schedule. At most kMaxPictureColumns columns are drawn; the title has their whole number.
std::string capture_picture(const pipeline::ScheduleShape& shape, int stage, const pipeline::LoweredSchedule& lowered);
inline constexpr int kMaxPictureColumns = 256;

}  // namespace megalith::apps
