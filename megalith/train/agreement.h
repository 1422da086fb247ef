#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"

namespace megalith::train {

/// What all ranks of a job must have in common, in the words of an error: {"optimizer.lr", "0.0003"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Every key of the resolved recipe, except those in which processes may differ (config::RanksMay).
Facts facts_of(const config::RunPlan& plan);

enum class Start : std::uint8_t { fresh, resumed };

/// Throws on every rank unless all have the same facts: CheckpointError (refused) if rank 0 resumes, else ConfigError,
/// with the ranks, the first keys and both values. Collective over world.all(), also between programs of different
/// builds: an all_gather of 16 bytes, and of all facts if they differ.
void require_same(comm::World& world, const Facts& facts, Start start);

/// Throws ConfigError on every rank unless all see, in `folder` by their own path and by rank 0's, a file that rank 0
/// makes there: a save is one folder to which all ranks write. `setting` names the folder in the error ("--out").
/// Collective over world.all(). A rank looks for 5 s, because file systems between hosts may show a new file late.
void require_shared(comm::World& world, io::Fs& fs, const io::Path& folder, std::string_view setting);

}  // namespace megalith::train
