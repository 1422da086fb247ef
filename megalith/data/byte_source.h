#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "megalith/io/fs.h"

namespace megalith::data {

/// Bytes of a file. They do not move as long as `owner` lives.
struct ByteBlock {
  std::string_view bytes{};
  std::shared_ptr<const void> owner{};
};

/// Reads a file from its beginning to its end through a window. Resident memory follows the window and the blocks that
/// are held, not the size of the file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// The window: what was read and not yet taken. Valid until extend() or take().
  virtual std::string_view window() const = 0;
  /// Reads about 1 MiB more into the window; false at the end of the file.
  virtual bool extend() = 0;
  /// Takes the first `size` bytes out of the window.
  virtual ByteBlock take(std::size_t size) = 0;
  /// Bytes read of the stored file, for progress.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// The bytes of a file. Files of gzip, zstd and xz are unpacked; the first bytes of a file decide, not its name.
/// Several members or frames in a row are one text.
/// Throws InputError for a file that is missing, no regular file or of a format that is not read. extend() throws it
/// for damage and names the place: a file that is cut, a checksum that differs, or other bytes after the end.
std::unique_ptr<ByteSource> open_bytes(io::Fs& fs, const io::Path& file);

}  // namespace megalith::data
