#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "megalith/io/fs.h"

namespace megalith::data {

/// Bytes of a file that stay where they are as long as their owner.
struct ByteBlock {
  std::string_view bytes{};
  std::shared_ptr<const void> owner{};
};

/// A file from front to back through a window. Resident memory follows the window and the blocks that are held, not the
/// size of the file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// What is in sight, from the place that is reached on. Valid until extend() or take().
  virtual std::string_view window() const = 0;
  /// Brings about 1 MiB more into sight; false at the end of the file.
  virtual bool extend() = 0;
  /// The first `size` bytes of the window, which moves behind them.
  virtual ByteBlock take(std::size_t size) = 0;
  /// Bytes of the file as it is stored that have been read: for progress.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// The bytes of a file; those of gzip, zstd and xz unpacked, which the file's first bytes decide, not its name. Several
/// members or frames in a row are one text. Throws InputError for a file that is missing, no regular file or a format
/// that is not read; extend() throws it, naming the place, for damage: what is cut, has another checksum than it says,
/// or has something else behind it.
std::unique_ptr<ByteSource> open_bytes(io::Fs& fs, const io::Path& file);

}  // namespace megalith::data
