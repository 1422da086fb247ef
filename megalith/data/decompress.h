#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "megalith/data/byte_source.h"

namespace megalith::data {

enum class Codec { none, gzip, zstd, xz };

/// By the first bytes of a file.
Codec codec_of(std::string_view front);

/// What `stored` holds, unpacked as it is asked for. `name` is the file's, for errors. Memory: the codec's window (at
/// most 128 MiB for zstd and 512 MiB for xz, which name their size in the file) and about 4 MiB.
std::unique_ptr<ByteSource> decompressed(Codec codec, std::unique_ptr<ByteSource> stored, std::string name);

}  // namespace megalith::data
