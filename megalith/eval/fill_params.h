#pragma once
#include "megalith/params/param_set.h"
#include "megalith/runtime/exec.h"

namespace megalith::eval {

/// Reads every parameter of a rank, without padding, in the dtype `stored`, and converts it. A parameter is read in
/// blocks. Host memory: 16 MiB, unless the CPU reads its own dtype.
void fill_params(Exec& ex, const ParamSet& params, DType stored, const ReadValues& read);

}  // namespace megalith::eval
