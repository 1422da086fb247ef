#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/io/fs.h"

namespace megalith::checkpoint {

// Checks of a file of a checkpoint. Functions ending in _problem return the problem, or "" if there is none.

/// Missing, not a regular file, wrong size.
std::string file_problem(io::Fs& fs, const io::Path& folder, const FileRecord& record);
/// Bytes of a block that differ from those of the save. `file` has record.checksums.bytes bytes.
std::string block_problem(const FileRecord& record, std::span<const std::byte> file, std::uint64_t block);
/// Names some of the tensors with bytes in a block: " (tensors a, b and 7 more)"; "" if there are none.
std::string tensors_in_block(const SafeTensorsHeader& header, std::uint64_t block);
/// A header that differs from the manifest about a slice.
std::string entry_problem(const SafeTensorsHeader& header, const TensorRecord& tensor, const ShardSlice& slice);

}  // namespace megalith::checkpoint
