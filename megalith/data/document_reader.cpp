#include "megalith/data/document_reader.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/input_files.h"

namespace megalith::data {

namespace {

std::string place_of(CorpusFormat format, std::uint64_t number) {
  if (format == CorpusFormat::json_lines) return str("line ", number);
  return format == CorpusFormat::parquet ? str("row ", number) : std::string("its text");
}

[[noreturn]] void throw_too_long(const DocumentBlock& block, std::uint64_t number, std::size_t max_bytes) {
  throw DocumentError(BadDocument::too_long,
                      str("[", block.file, "] ", place_of(block.format, number), " has over ", max_bytes,
                          " bytes, the most that a document may have; ", kMaxLineSetting));
}

}  // namespace

DocumentReader::DocumentReader(io::Fs& fs, const io::Path& file, const Options& options)
    : file_(file.string()), options_(options) {
  require_file(fs, file, "input");
  format_ = format_of(fs, file, options.format);
  if (format_ == CorpusFormat::parquet)
    parquet_ = std::make_unique<ParquetFile>(fs, file, options.key, options.max_document_bytes);
  else
    source_ = open_bytes(fs, file);
}

CorpusFormat format_of(io::Fs& fs, const io::Path& file, CorpusFormat asked) {
  if (asked != CorpusFormat::by_name) return asked;
  refuse_table(file);
  if (names_json_lines(file)) return CorpusFormat::json_lines;
  const bool is_parquet = file.extension() == ".parquet" || fs.map(file).text().starts_with("PAR1");
  return is_parquet ? CorpusFormat::parquet : CorpusFormat::text;
}

std::optional<DocumentBlock> DocumentReader::next() {
  DocumentBlock block{.file = file_, .format = format_, .first = documents_};
  if (parquet_) {
    std::optional<ParquetValues> values = parquet_->next();
    if (!values) return std::nullopt;
    block.held.owner = values->owner;
    for (std::size_t i = 0; i < values->values.size(); ++i) {
      const bool is_too_long = values->values[i].size() > options_.max_document_bytes;
      if (is_too_long && options_.too_long == TooLong::fail)
        throw_too_long(block, values->rows[i], options_.max_document_bytes);
      block.documents.push_back({.bytes = is_too_long ? std::string_view() : values->values[i],
                                 .line = values->rows[i],
                                 .is_too_long = is_too_long});
    }
    documents_ += block.documents.size();
    return block;
  }
  if (format_ == CorpusFormat::json_lines) {
    const std::size_t end = end_of_lines();
    if (line_is_too_long_) {
      if (options_.too_long == TooLong::fail) throw_too_long(block, lines_ + 1, options_.max_document_bytes);
      leave_out_line();
      block.documents.push_back({.line = lines_, .is_too_long = true});
      ++documents_;
      return block;
    }
    if (end == 0) return std::nullopt;
    block.held = source_->take(end);
    cut_lines(block);
  } else {
    if (text_is_read_) return std::nullopt;
    const std::size_t end = end_of_text();
    if (text_is_too_long_) {
      if (options_.too_long == TooLong::fail) throw_too_long(block, 1, options_.max_document_bytes);
      text_is_read_ = true;  // the rest of it, too
      block.documents.push_back({.is_too_long = true});
      ++documents_;
      return block;
    }
    block.held = source_->take(end);
    block.documents.push_back({.bytes = block.held.bytes, .offset = text_read_, .ends_document = text_is_read_});
    text_read_ += block.held.bytes.size();
    if (!text_is_read_) return block;
  }
  documents_ += block.documents.size();
  return block;
}

/// The place after the last line end within about block_bytes, or after the first line end if there is none within.
std::size_t DocumentReader::end_of_lines() {
  bool more = true;
  while (source_->window().size() < options_.block_bytes && more) more = source_->extend();
  if (source_->window().empty()) return 0;
  const std::size_t last = source_->window().substr(0, options_.block_bytes).rfind('\n');
  if (last != std::string_view::npos) return last + 1;
  for (std::size_t looked_at = 0;;) {
    const std::string_view window = source_->window();
    const std::size_t found = window.find('\n', looked_at);
    looked_at = window.size();
    line_is_too_long_ = std::min(found, looked_at) > options_.max_document_bytes;
    if (line_is_too_long_) return 0;
    if (found != std::string_view::npos) return found + 1;
    if (!source_->extend()) return looked_at;
  }
}

/// Skips the line that begins at the window, one window at a time.
void DocumentReader::leave_out_line() {
  ++lines_;
  line_is_too_long_ = false;
  for (bool more = true; more;) {
    const std::size_t end = source_->window().find('\n');
    if (end != std::string_view::npos) {
      source_->take(end + 1);
      return;
    }
    source_->take(source_->window().size());
    more = source_->extend();
  }
}

/// All of the text, or a piece of about block_bytes that ends with white space.
std::size_t DocumentReader::end_of_text() {
  while (source_->extend()) {
    const std::string_view window = source_->window();
    if (options_.cut == Cut::texts && window.size() >= options_.block_bytes)
      if (const std::size_t space = window.find_last_of(" \n\t"); space != std::string_view::npos) return space + 1;
    if (window.size() > options_.max_document_bytes) {
      text_is_too_long_ = true;
      return 0;
    }
  }
  if (options_.cut == Cut::documents && source_->window().size() > options_.max_document_bytes) {
    text_is_too_long_ = true;
    return 0;
  }
  text_is_read_ = true;
  return source_->window().size();
}

void DocumentReader::cut_lines(DocumentBlock& block) {
  const std::string_view bytes = block.held.bytes;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string_view line = bytes.substr(at, end - at);
    ++lines_;
    const bool is_too_long = line.size() > options_.max_document_bytes;
    if (is_too_long && options_.too_long == TooLong::fail) throw_too_long(block, lines_, options_.max_document_bytes);
    if (is_too_long)
      block.documents.push_back({.line = lines_, .is_too_long = true});
    else if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      block.documents.push_back({.bytes = line, .line = lines_});
    at = end + 1;
  }
}

std::string_view DocumentText::of(const DocumentBlock& block, const RawDocument& document) {
  if (document.is_too_long)
    throw DocumentError(BadDocument::too_long, str("[", block.file, "] ", place_of(block.format, document.line),
                                                   " has more bytes than a document may have; ", kMaxLineSetting));
  if (block.format == CorpusFormat::json_lines)
    return json_.read(document.bytes, {block.file, document.line, block.held.bytes});
  const std::size_t good = valid_utf8_prefix(document.bytes);
  if (good == document.bytes.size()) return document.bytes;
  const std::string where = block.format == CorpusFormat::parquet
                                ? str("row ", document.line, ", byte ", good, " of the text")
                                : str("byte ", document.offset + good);
  throw DocumentError(BadDocument::not_utf8, str("[", block.file, "] ", where, " must be UTF-8"));
}

}  // namespace megalith::data
