#include "megalith/tasks/task_file.h"

#include <memory>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/byte_source.h"
#include "megalith/data/document_reader.h"
#include "megalith/io/checksum.h"
#include "megalith/io/reader.h"

namespace megalith::tasks {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

[[noreturn]] void throw_empty(const io::Path& file) {
  throw InputError(str("[", file.string(), "] is empty; is it the right file?"));
}

}  // namespace

std::string read_whole_file(io::Fs& fs, const io::Path& file, std::string_view what) {
  data::require_file(fs, file, what);
  const std::unique_ptr<data::ByteSource> source = data::open_bytes(fs, file);
  while (source->extend()) {
    if (source->window().size() > kMaxWholeFile)
      throw InputError(str("[", file.string(), "] has over ", kMaxWholeFile, " bytes, the most that ", what,
                           " may have; cut the file in parts"));
  }
  std::string_view text = source->window();
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) throw_empty(file);
  return std::string(text);
}

void for_each_line(io::Fs& fs, const io::Path& file, std::string_view what, std::size_t max_line,
                   const std::function<void(const FileLine&)>& use) {
  data::require_file(fs, file, what);
  // Lines of JSON are lines of any text.
  data::DocumentReader reader(fs, file, {.format = data::CorpusFormat::json_lines, .max_document_bytes = max_line});
  bool is_empty = true;
  while (const std::optional<data::DocumentBlock> block = reader.next()) {
    for (const data::RawDocument& document : block->documents) {
      std::string_view text = document.bytes;
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (document.line == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
      if (text.empty()) continue;
      is_empty = false;
      use({.text = text, .number = static_cast<Index>(document.line)});
    }
  }
  if (is_empty) throw_empty(file);
}

std::vector<std::string_view> split_tabs(std::string_view line) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = line.find('\t', begin);
    parts.push_back(line.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string file_checksum(io::Fs& fs, const io::Path& file) {
  const std::unique_ptr<data::ByteSource> source = data::open_bytes(fs, file);
  io::RunningChecksum checksum;
  for (bool more = true; more;) {
    more = source->extend();
    checksum.update(source->window());
    source->take(source->window().size());
  }
  return checksum.value().hex();
}

std::string at_line(std::string_view file, Index line) { return str("[", file, ":", line, "] "); }
std::string shown(std::string_view text) { return '"' + io::printable(text) + '"'; }

}  // namespace megalith::tasks
