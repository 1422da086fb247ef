#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Times between two points in the order of an Exec's ops, by the clock of its device. The host waits for nothing, so
// that graphs may hold these ops. On a GPU each is a kernel of one thread: what lies between is the time for which the
// stream stands still or runs other ops, and the start of the second kernel. Tensors on the device: `begin` [1] i64, in
// ns of a clock of which only differences mean something; `sum` [1] f64, in us.

/// begin = now
void start_clock(Exec& ex, const Tensor& begin);
/// sum += now - begin
void add_elapsed(Exec& ex, const Tensor& begin, const Tensor& sum);

}  // namespace megalith::ops
