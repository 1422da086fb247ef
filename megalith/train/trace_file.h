#pragma once
#include "megalith/comm/world.h"
#include "megalith/io/fs.h"
#include "megalith/tensor/tracer.h"

namespace megalith::train {

/// Writes what the ranks' tracers hold as one file in Chrome's trace format, which Perfetto opens: a row for each rank,
/// a bar for each op, times in microseconds since the rank's own first op. Collective, over world.all(); rank 0 writes.
/// Throws IoError on rank 0.
void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer);

}  // namespace megalith::train
