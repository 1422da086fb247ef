#pragma once
#include <string_view>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/runtime/exec.h"
#include "megalith/runtime/tracer.h"

namespace megalith::train {

/// Throws ConfigError if a step of the plan runs from graphs, in which single ops cannot be timed. `wish`: the setting
/// that requires their times, for example "--trace = FILE".
void require_single_ops(const config::RunPlan& plan, std::string_view wish);

/// Throws ConfigError if no steps of the plan can be traced to `file`, the value of --trace: they run from graphs, or
/// there can be no such file.
void require_trace(const config::RunPlan& plan, const io::Path& file);

/// Waits until all ranks have completed their work so far. From here on `ex` is traced. Collective over world.all().
void begin_trace(comm::World& world, Exec& ex, Tracer& tracer);

/// Writes the records of all ranks' tracers as one file in Chrome's trace format, which Perfetto opens. Each rank has a
/// row with a bar per op, whose category is its phase. Rows "communication" have its calls in flight, with group and
/// bytes. Their bars last from the time when a call's data was ready until the call was done. Times are microseconds
/// since the first rank of the same host began its trace. Ranks of one host are compared by the host's clock
/// (Tracer::start_clock_s()). Hosts are compared only by the barrier of begin_trace(): their times differ by the time
/// of its last messages, some 10 us over a good network, and by the drift of their clocks. A row has the members of
/// each of the rank's `groups`, by which `megalith trace` (report/trace_waits.h) tells which calls belong together.
/// Collective over world.all(); rank 0 writes. Throws IoError on rank 0.
void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer,
                 const std::vector<comm::Group>& groups);
/// The groups of a rank in which a step may communicate.
std::vector<comm::Group> traced_groups(const comm::Mesh& mesh);

}  // namespace megalith::train
