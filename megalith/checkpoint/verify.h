#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/io/fs.h"

namespace megalith::checkpoint {

/// The result of a complete check.
struct Verification {
  Manifest manifest;
  std::vector<std::string> problems;  ///< every damaged block, missing file, ...; empty: the checkpoint is undamaged
  std::uint64_t bytes = 0;            ///< that were read
};

/// Reads every byte of a published folder and checks block checksums, headers, and the state digest, which it
/// recomputes. Throws InputError or CheckpointError if the manifest itself cannot be used. All other damage is listed.
Verification verify(io::Fs& fs, const io::Path& folder);

}  // namespace megalith::checkpoint
