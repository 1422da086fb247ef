#pragma once
#include <cstdint>

#include "megalith/io/checksum.h"
#include "megalith/io/fs.h"

namespace megalith::corpus {

/// A file of at most this many bytes is read whole for its checksum. From a larger one as many are read, in stretches
/// of one size from begin to end.
constexpr std::uint64_t kSampledBytes = std::uint64_t{128} << 10, kSampledStretch = std::uint64_t{4} << 10;

/// Distinguishes a file from most others of its name and size. The time does not depend on the size.
io::Hash128 sampled_checksum(io::Fs& fs, const io::Path& file);

}  // namespace megalith::corpus
