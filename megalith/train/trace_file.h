#pragma once
#include <string_view>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/tensor/tracer.h"

namespace megalith::train {

/// Throws ConfigError when a step of the plan is handed over by graphs, in which single ops cannot be timed. `wish`:
/// what asks for their times, as "--trace = FILE".
void require_single_ops(const config::RunPlan& plan, std::string_view wish);

/// Writes what the ranks' tracers hold as one file in Chrome's trace format, which Perfetto opens: a row for each rank,
/// a bar for each op, times in microseconds since the rank's own first op. Collective, over world.all(); rank 0 writes.
/// Throws IoError on rank 0.
void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer);

}  // namespace megalith::train
