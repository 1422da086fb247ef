#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/io/checksum.h"
#include "megalith/io/fs.h"

namespace megalith::eval {

/// Checksum and encoding of an unpacked file.
struct ScannedText {
  io::Hash128 checksum;
  Index bytes = 0;
  bool is_blank = true;
  /// The position of the first byte that is not UTF-8.
  std::optional<Index> bad_byte{};
  Index bad_line = 1;
};
/// Reads a file (gzip, zstd and xz are unpacked) one megabyte at a time. Throws InputError, IoError.
ScannedText scan_text(io::Fs& fs, const std::string& file);

/// The most bytes of a text that is held as a whole, and how a user raises that, for the error.
struct TextLimit {
  std::uint64_t max_bytes = 0;
  std::string_view setting = "--max-line";
};
/// The text of a scanned file. Throws InputError if it is longer than the limit.
std::string read_whole_text(io::Fs& fs, const std::string& file, const ScannedText& scanned, const TextLimit& limit);

}  // namespace megalith::eval
