#include "megalith/data/corpus_reader.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/utf8.h"
#include "megalith/data/document_reader.h"
#include "megalith/data/input_files.h"
#include "megalith/data/json_text.h"
#include "megalith/io/problem_text.h"

namespace megalith::data {

bool names_json_lines(const io::Path& file) {
  std::string extension = file.extension().string();
  if (extension == ".gz" || extension == ".zst" || extension == ".xz") extension = file.stem().extension().string();
  return extension == ".jsonl" || extension == ".ndjson";
}

CorpusFormat format_named(std::string_view name) {
  if (name == "auto") return CorpusFormat::by_name;
  if (name == "jsonl") return CorpusFormat::json_lines;
  if (name == "text") return CorpusFormat::text;
  if (name == "parquet") return CorpusFormat::parquet;
  throw ConfigError(str("--input-format ", name, ": must be auto, jsonl, text or parquet"));
}

void require_file(io::Fs& fs, const io::Path& file, std::string_view what) {
  if (fs.is_dir(file)) throw InputError(str("[", what, "] ", file.string(), ": is a folder; name the files in it"));
  if (fs.exists(file)) return;
  const io::Path folder = file.has_parent_path() ? file.parent_path() : io::Path(".");
  if (!fs.is_dir(folder))
    throw InputError(
        str("[", what, "] ", file.string(), ": there is no folder ", folder.string(), io::looked_for_in(folder)));
  std::vector<std::string> names = fs.list(folder);
  std::erase(names, file.filename().string());  // a link whose target is missing
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest(file.filename().string(), views);
  throw InputError(
      str("[", what, "] ", file.string(), ": there is no such file", io::looked_for_in(file),
          near.empty() ? std::string() : str("; did you mean ", (folder / near).lexically_normal().string(), "?")));
}

CorpusReader::CorpusReader(io::Fs& fs, std::vector<io::Path> files, NextCut next_cut, const Options& options)
    : fs_(fs), files_(std::move(files)), next_cut_(std::move(next_cut)), options_(options) {
  for (const io::Path& file : files_) {
    require_file(fs_, file, "input");
    if (options_.format == CorpusFormat::by_name) refuse_table(file);  // before earlier files are read
    total_bytes_ += static_cast<Index>(fs_.file_size(file));
  }
}

CorpusReader::~CorpusReader() = default;

std::string_view CorpusText::raw(const CorpusBlock& block, const CorpusPiece& piece) {
  std::string_view bytes = piece.bytes;
  std::string_view readable = block.held.bytes;
  if (invalid_ == Invalid::replace && !is_utf8(bytes)) {
    repaired_ = repair_utf8(bytes);
    bytes = readable = repaired_;
  }
  if (block.format != CorpusFormat::json_lines) return bytes;
  return json_.read(bytes, {.file = block.file, .number = piece.line, .readable = readable});
}

std::string_view CorpusText::of(const CorpusBlock& block, const CorpusPiece& piece) {
  const std::string_view text = raw(block, piece);
  const std::size_t good = valid_utf8_prefix(text);
  if (good != text.size()) fail(block, piece, good, "must be UTF-8");
  return text;
}

void CorpusText::fail(const CorpusBlock& block, const CorpusPiece& piece, std::size_t offset, std::string_view rule) {
  if (block.format == CorpusFormat::text)
    throw InputError(str("[", block.file, "] byte ", piece.offset + offset, " ", rule));
  const char* const unit = block.format == CorpusFormat::parquet ? "row " : "line ";
  throw InputError(str("[", block.file, "] ", unit, piece.line, ", byte ", offset, " of the text ", rule));
}

void CorpusReader::open_next_file() {
  const io::Path& file = files_[file_++];
  const CorpusFormat format = format_of(fs_, file, options_.format);
  lines_.reset();
  text_.reset();
  if (format != CorpusFormat::text)
    lines_ = std::make_unique<DocumentReader>(
        fs_, file,
        DocumentReader::Options{.format = format,
                                .block_bytes = static_cast<std::size_t>(options_.block_bytes),
                                .max_document_bytes = static_cast<std::size_t>(options_.max_line_bytes),
                                .key = options_.key});
  else
    text_ = open_bytes(fs_, file);
  is_document_begin_ = true;
  before_window_ = '\n';
  text_offset_ = stored_before_ = 0;
  seen_ = line_begin_ = 0;
  if (text_) require_lines();
}

bool CorpusReader::extend_text() {
  const bool more = text_->extend();
  require_lines();
  return more;
}

/// Checks the lines that were read since the last call.
void CorpusReader::require_lines() {
  const std::string_view text = text_->window();
  const auto max_bytes = static_cast<std::uint64_t>(options_.max_line_bytes);
  const auto require = [&](std::uint64_t end) {
    if (end - line_begin_ > max_bytes)
      throw DocumentError(BadDocument::too_long,
                          str("[", files_[file_ - 1].string(), "] the line that begins at byte ", line_begin_,
                              " has over ", max_bytes, " bytes, the most that a line may have; ", kMaxLineSetting));
  };
  for (std::size_t at = seen_ - text_offset_; at < text.size();) {
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    require(text_offset_ + end);
    if (text.size() - end <= max_bytes) end = text.rfind('\n');  // the lines between are short enough
    line_begin_ = text_offset_ + end + 1;
    at = end + 1;
  }
  seen_ = text_offset_ + text.size();
  require(seen_);
}

/// Throws if `stretch` bytes of text without a place to cut are too many.
void CorpusReader::require_cut(std::size_t at, std::size_t stretch) const {
  if (stretch <= static_cast<std::size_t>(options_.max_line_bytes)) return;
  throw DocumentError(
      BadDocument::too_long,
      str("[", files_[file_ - 1].string(), "] byte ", text_offset_ + at, ": the tokenizer cannot cut the next ",
          options_.max_line_bytes, " bytes of the text, the most that it may take at once; ", kMaxLineSetting));
}

std::optional<CorpusBlock> CorpusReader::next() {
  for (;;) {
    CorpusBlock block;
    if ((lines_ && next_lines(block)) || (text_ && next_text(block))) {
      block.file_number = file_ - 1;
      block.file = files_[block.file_number].string();
      const std::uint64_t stored = lines_ ? lines_->stored_bytes() : text_->stored_bytes();
      block.bytes = static_cast<Index>(stored - stored_before_);
      stored_before_ = stored;
      return block;
    }
    if (file_ == files_.size()) return std::nullopt;
    open_next_file();
  }
}

bool CorpusReader::next_lines(CorpusBlock& block) {
  std::optional<DocumentBlock> lines = lines_->next();
  if (!lines) return false;
  block.format = lines->format;
  block.held = std::move(lines->held);
  for (const RawDocument& line : lines->documents) block.pieces.push_back({.bytes = line.bytes, .line = line.line});
  return true;
}

bool CorpusReader::next_text(CorpusBlock& block) {
  std::vector<Piece> pieces;
  std::size_t at = 0;
  while (at < static_cast<std::size_t>(options_.block_bytes) && next_piece(at, pieces)) {
  }
  if (at == 0) return false;
  block.format = CorpusFormat::text;
  block.held = text_->take(at);
  for (const Piece& piece : pieces)
    block.pieces.push_back({.bytes = block.held.bytes.substr(piece.begin, piece.size),
                            .ends_document = piece.ends_document,
                            .offset = text_offset_ + piece.begin});
  text_offset_ += at;
  before_window_ = block.held.bytes.back();
  return true;
}

/// Where the line of the separator begins, from `from` on in the window, for a document that is read up to `at`. npos
/// if the window has none.
std::size_t CorpusReader::find_separator(std::size_t at, std::size_t from) const {
  if (options_.split_on.empty()) return std::string_view::npos;
  const std::string_view text = text_->window();
  for (std::size_t line = from;;) {
    const std::size_t found = text.find(options_.split_on, line);
    if (found == std::string_view::npos) return found;
    const std::size_t after = found + options_.split_on.size();
    const char before = found > 0 ? text[found - 1] : before_window_;
    const bool begins_line = before == '\n' || (found == at && is_document_begin_);
    if (begins_line && (after == text.size() || text[after] == '\n' || text.substr(after).starts_with("\r\n")))
      return found;
    line = found + 1;
  }
}

/// Adds the piece at `at`. Moves `at` past it, and past the separator that ends its document. False at the end of the
/// file.
bool CorpusReader::next_piece(std::size_t& at, std::vector<Piece>& pieces) {
  const auto wanted = static_cast<std::size_t>(options_.block_bytes);
  const std::size_t tail =
      options_.split_on.size() + 2;  // a separator and its line end may begin in the window and end outside
  for (bool more = true;;) {
    while (more && text_->window().size() < at + wanted + tail + 1) more = extend_text();
    const std::string_view text = text_->window();
    if (at == text.size()) return false;
    const std::size_t separator = find_separator(at, at);
    const bool is_whole = separator != std::string_view::npos && (!more || separator + tail <= text.size());
    const std::size_t known = is_whole ? separator
                              : more   ? text.size() - std::min(text.size() - at, tail)
                                       : text.size();
    const std::string_view document = text.substr(at, known - at);
    const std::size_t size = next_cut_(document, wanted);
    const bool ends = size == document.size();
    if (ends && more && !is_whole) {  // the window has no place to cut
      require_cut(at + wanted, size - std::min(size, wanted));
      more = extend_text();
      continue;
    }
    pieces.push_back({at, size, ends});
    at += size;
    is_document_begin_ = false;
    if (!ends) return true;
    if (is_whole) at = std::min(text.find('\n', separator), text.size() - 1) + 1;
    is_document_begin_ = true;
    return true;
  }
}

}  // namespace megalith::data
