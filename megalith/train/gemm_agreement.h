#pragma once
#include <cstddef>
#include <span>

#include "megalith/comm/world.h"
#include "megalith/ops/gemm_chooser.h"

namespace megalith::train {

/// Every rank sends the GEMMs that it has met. Rank 0 chooses an algorithm for all of them (ops::choose_gemms, with its
/// `known` tables and its `scratch`), and all ranks use it. Ranks with another kind of GPU or another library cannot
/// share algorithms. Then each rank chooses for itself, with a warning. Returns the table, which is the same on every
/// rank except in that case. What was timed, and the warnings, are rank 0's. Collective over world.all().
ops::GemmChoices agree_on_gemms(comm::World& world, ops::GemmChooser& chooser, std::span<const ops::KnownGemms> known,
                                std::span<std::byte> scratch);

}  // namespace megalith::train
