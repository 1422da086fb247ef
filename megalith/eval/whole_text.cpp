#include "megalith/eval/whole_text.h"

#include <algorithm>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/byte_source.h"
#include "megalith/eval/detokenize.h"

namespace megalith::eval {

ScannedText scan_text(io::Fs& fs, const std::string& file) {
  const std::unique_ptr<data::ByteSource> source = data::open_bytes(fs, file);
  io::RunningChecksum checksum;
  ScannedText found;
  Index line = 1;
  for (bool more = true; more;) {
    more = source->extend();
    const std::string_view text = source->window();
    const std::size_t good = valid_utf8_prefix(text), tail = text.size() - good;
    const bool is_open =
        more && tail <= 3 && incomplete_utf8_tail(text) == tail;  // the character goes on in the next part
    line += std::ranges::count(text.substr(0, good), '\n');
    if (good < text.size() && !is_open && !found.bad_byte) {
      found.bad_byte = found.bytes + static_cast<Index>(good);
      found.bad_line = line;
    }
    const std::string_view taken = is_open ? text.substr(0, good) : text;
    checksum.update(taken);
    found.is_blank = found.is_blank && strip(taken).empty();
    found.bytes += static_cast<Index>(taken.size());
    source->take(taken.size());
  }
  found.checksum = checksum.value();
  return found;
}

std::string read_whole_text(io::Fs& fs, const std::string& file, const ScannedText& scanned, const TextLimit& limit) {
  if (static_cast<std::uint64_t>(scanned.bytes) > limit.max_bytes)
    throw InputError(str("[", file, "] has ", scanned.bytes, " bytes, and is held as a whole: must have at most ",
                         limit.max_bytes, "; ", limit.setting, " raises that",
                         limit.setting == TextLimit().setting ? ", and --task loss reads a text in pieces" : ""));
  const std::unique_ptr<data::ByteSource> source = data::open_bytes(fs, file);
  while (source->extend()) {
  }
  return std::string(source->window());
}

}  // namespace megalith::eval
