#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "megalith/data/byte_source.h"

namespace megalith::data {

enum class Codec { none, gzip, zstd, xz };

/// The format, from the first bytes of a file.
Codec codec_of(std::string_view front);

/// The content of `stored`, unpacked while it is read. `name` is the file's, for errors. Memory: about 4 MiB and the
/// codec's window. The file names the size of that window: at most 128 MiB for zstd and 512 MiB for xz.
std::unique_ptr<ByteSource> decompressed(Codec codec, std::unique_ptr<ByteSource> stored, std::string name);

}  // namespace megalith::data
