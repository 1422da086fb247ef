#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/io/fs.h"

namespace megalith::checkpoint {

/// The outcome of reading everything.
struct Verification {
  Manifest manifest;
  std::vector<std::string> problems;  ///< every damaged block, missing file, ...; empty: the checkpoint is whole
  std::uint64_t bytes = 0;            ///< read
};

/// Reads every byte of a published folder: block checksums, headers, and the state digest computed anew. Throws
/// InputError or CheckpointError when the manifest itself cannot be used; all other damage is listed.
Verification verify(io::Fs& fs, const io::Path& folder);

}  // namespace megalith::checkpoint
