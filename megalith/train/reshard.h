#pragma once
#include "megalith/checkpoint/shard_io.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/save_protocol.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {

/// The elements [first, first + count) of a piece of a checkpoint, as checkpoint::write_shard() asks for them, in
/// `memory`. Throws as CheckpointReader::read.
Tensor read_block(checkpoint::CheckpointReader& from, const checkpoint::PieceInfo& piece, Index first, Index count,
                  const Buffer& memory);

/// Writes the files that the ranks of another grid would have saved of the same state, and publishes them in `folder`
/// (io::publish). `plan`: the recipe of the checkpoint on that grid. The manifest has the same step, counters, hashes
/// and state digest. Returns the published folder. Reads and writes in blocks: host memory 64 MiB and, for one rank at
/// a time, the plan of its passes. Throws CheckpointError (refused) if no rank of the grid owns a tensor of the
/// checkpoint, InputError if data is damaged, IoError. Then nothing is left.
io::StepFolder reshard(checkpoint::CheckpointReader& from, const config::RunPlan& plan, io::Fs& fs,
                       const io::Path& folder);

}  // namespace megalith::train
