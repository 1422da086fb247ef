#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::tasks {

/// The most bytes, unpacked, of a file that is read as a whole: SQuAD, predictions of SQuAD, an article of RACE.
/// SQuAD's training sets have 42 MB.
inline constexpr std::size_t kMaxWholeFile = std::size_t{256} << 20;

/// A file as a whole, unpacked (gzip, zstd, xz). Throws InputError for a missing or damaged file, for one without
/// anything but white space, and above kMaxWholeFile. `what` names its use: "--data".
std::string read_whole_file(io::Fs& fs, const io::Path& file, std::string_view what);

/// A line that is not blank, without its line end.
struct FileLine {
  std::string_view text;
  Index number = 1;
};
/// Calls use() for each line. Holds about a megabyte, and the longest line, of at most `max_line` bytes. Throws
/// InputError as above, and for a longer line. A byte-order mark at the begin is left out.
void for_each_line(io::Fs& fs, const io::Path& file, std::string_view what, std::size_t max_line,
                   const std::function<void(const FileLine&)>& use);

/// The parts between tabs.
std::vector<std::string_view> split_tabs(std::string_view line);

/// XXH3-128 of the unpacked file, in hex digits.
std::string file_checksum(io::Fs& fs, const io::Path& file);

/// "[FILE:LINE] "
std::string at_line(std::string_view file, Index line);
/// "TEXT", in quotes, as a message shows it.
std::string shown(std::string_view text);

}  // namespace megalith::tasks
