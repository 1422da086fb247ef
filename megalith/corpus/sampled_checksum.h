#pragma once
#include <cstdint>

#include "megalith/io/checksum.h"
#include "megalith/io/fs.h"

namespace megalith::corpus {

/// A file of at most so many bytes is read whole for its checksum; of a larger one as many, in stretches of one size
/// from begin to end.
constexpr std::uint64_t kSampledBytes = std::uint64_t{128} << 10, kSampledStretch = std::uint64_t{4} << 10;

/// Tells a file from most others of its name and size, in a time that does not follow the size.
io::Hash128 sampled_checksum(io::Fs& fs, const io::Path& file);

}  // namespace megalith::corpus
