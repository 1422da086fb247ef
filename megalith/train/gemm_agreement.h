#pragma once
#include <cstddef>
#include <span>

#include "megalith/comm/world.h"
#include "megalith/ops/gemm_chooser.h"

namespace megalith::train {

/// Every rank brings the products that it has met, rank 0 chooses an algorithm for all of them (ops::choose_gemms, with
/// its `known` tables and its `scratch`), and all use it. Ranks on GPUs of another kind, or with another library,
/// cannot share algorithms: then each rank chooses for itself, and a warning says so. Returns the table, which is the
/// same on every rank unless they differ so; what was timed, and the warnings, are rank 0's. Collective, over
/// world.all().
ops::GemmChoices agree_on_gemms(comm::World& world, ops::GemmChooser& chooser, std::span<const ops::KnownGemms> known,
                                std::span<std::byte> scratch);

}  // namespace megalith::train
