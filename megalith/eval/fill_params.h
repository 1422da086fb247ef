#pragma once
#include "megalith/params/param_set.h"
#include "megalith/runtime/exec.h"

namespace megalith::eval {

/// Reads every parameter of a rank, without padding, in the dtype `stored`, and converts it. A parameter is read in
/// blocks. Host memory: 16 MiB, unless the CPU reads its own dtype. Throws InternalError if layers read a copy of their
/// masters.
void fill_params(Exec& ex, const ParamSet& params, DType stored, const ReadValues& read);

/// Copies the values that the layers of `from` read, without padding, to the same parameters of `to`: of a model that
/// is cut over ranks in the same way, on the same device. Nothing may write `from`. Throws InternalError for a
/// parameter that `from` lacks or has in another shape.
void copy_params(Exec& ex, const ParamSet& to, ParamSet& from);

}  // namespace megalith::eval
