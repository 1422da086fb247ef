#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/io/fs.h"

namespace megalith::checkpoint {

// What can be wrong with a file of a checkpoint. Those that end in _problem return it, or "" when there
// is none.

/// Missing, no regular file, another size.
std::string file_problem(io::Fs& fs, const io::Path& folder, const FileRecord& record);
/// Bytes of a block that are not those of the save. `file` has record.checksums.bytes bytes.
std::string block_problem(const FileRecord& record, std::span<const std::byte> file, std::uint64_t block);
/// Names some of the tensors that have bytes in a block: " (tensors a, b and 7 more)"; "" when none has.
std::string tensors_in_block(const SafeTensorsHeader& header, std::uint64_t block);
/// A header that does not say what the manifest says about a slice.
std::string entry_problem(const SafeTensorsHeader& header, const TensorRecord& tensor, const ShardSlice& slice);

}  // namespace megalith::checkpoint
