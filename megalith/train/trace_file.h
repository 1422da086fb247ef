#pragma once
#include <string_view>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/runtime/exec.h"
#include "megalith/runtime/tracer.h"

namespace megalith::train {

/// Throws ConfigError when a step of the plan is handed over by graphs, in which single ops cannot be timed. `wish`:
/// what asks for their times, as "--trace = FILE".
void require_single_ops(const config::RunPlan& plan, std::string_view wish);

/// Throws ConfigError when no steps of the plan can be traced to `file`, the value of --trace: they come from graphs,
/// or no such file can be.
void require_trace(const config::RunPlan& plan, const io::Path& file);

/// All ranks have done their work so far, and meet: from here on `ex` is traced. Collective, over world.all().
void begin_trace(comm::World& world, Exec& ex, Tracer& tracer);

/// Writes what the ranks' tracers hold as one file in Chrome's trace format, which Perfetto opens. Each rank has a row
/// with a bar for each op, whose category is its phase, and as many rows "communication" as it has calls under way at
/// once, with a bar from when a call's data was ready until the call was done, its group and bytes. Times are
/// microseconds since the first rank of the same host began its trace. Ranks of one host are compared by the host's
/// clock (Tracer::start_clock_s()); hosts by the meeting of begin_trace() alone, so their times are apart by what its
/// last messages take, some 10 us over a good network, and as their clocks drift. Collective, over world.all(); rank 0
/// writes. Throws IoError on rank 0.
void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer);

}  // namespace megalith::train
