#pragma once
#include <vector>

#include "megalith/pipeline/schedule.h"

namespace megalith::pipeline {

/// What every compute list must satisfy by itself: each chunk sees each microbatch once forward and (in training) once
/// backward, both in ascending order, and no backward comes before the forwards and backwards on this stage that it
/// needs. Problems name the stage and the entry.
void check_compute_list(const ScheduleShape& shape, int stage, const Schedule& list, Problems& out);

/// Whether signed order lists that someone else made, one for each stage, are a schedule: each passes
/// check_compute_list(), and together they finish when simulated, every message meeting the receive it is meant for.
void check_orders(const ScheduleShape& shape, const std::vector<std::vector<int>>& orders, Problems& out);

}  // namespace megalith::pipeline
