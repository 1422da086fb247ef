#pragma once
#include <string_view>

#include "megalith/checkpoint/shard_io.h"

namespace megalith::train {

// A checkpoint may hold moments of another dtype than the run that reads it (optimizer.moments).

/// Whether a tensor is a moment that the checkpoint has in another dtype, of which one is bf16.
bool is_of_other_type(const checkpoint::Manifest& saved, std::string_view tensor, DType dtype);

/// Reads a slice of such a moment. From f32 or f64 to bf16 it rounds to nearest even; the inverse is exact. Takes host
/// memory for the slice in the checkpoint's dtype. Throws as CheckpointReader::read.
void read_converted(checkpoint::CheckpointReader& reader, const TensorSlice& slice, const Tensor& into);

/// Adds a slice of a tensor to a digest as the checkpoint has it. Takes 64 MiB of host memory at most. Throws as
/// CheckpointReader::read.
void add_saved(checkpoint::CheckpointReader& reader, const TensorSlice& slice, checkpoint::StateDigest& digest);

}  // namespace megalith::train
