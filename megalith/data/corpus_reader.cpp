#include "megalith/data/corpus_reader.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/problem_text.h"

namespace megalith::data {

bool names_json_lines(const io::Path& file) {
  const std::string extension = file.extension().string();
  return extension == ".jsonl" || extension == ".ndjson";
}

void require_file(io::Fs& fs, const io::Path& file, std::string_view what) {
  if (fs.is_dir(file)) throw InputError(str("[", what, "] ", file.string(), ": is a folder; name the files in it"));
  if (fs.exists(file)) return;
  const io::Path folder = file.has_parent_path() ? file.parent_path() : io::Path(".");
  if (!fs.is_dir(folder))
    throw InputError(
        str("[", what, "] ", file.string(), ": there is no folder ", folder.string(), io::looked_for_in(folder)));
  const std::vector<std::string> names = fs.list(folder);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest(file.filename().string(), views);
  throw InputError(
      str("[", what, "] ", file.string(), ": there is no such file", io::looked_for_in(file),
          near.empty() ? std::string() : str("; did you mean ", (folder / near).lexically_normal().string(), "?")));
}

CorpusReader::CorpusReader(io::Fs& fs, std::vector<io::Path> files, const Tokenizer& tokenizer, const Options& options)
    : fs_(fs), files_(std::move(files)), tokenizer_(tokenizer), options_(options) {
  for (const io::Path& file : files_) {
    require_file(fs_, file, "input");
    total_bytes_ += static_cast<Index>(fs_.file_size(file));
  }
}

void CorpusReader::open_next_file() {
  const io::Path& file = files_[file_++];
  mapped_ = fs_.map(file);
  at_ = document_end_ = 0;
  line_ = 0;
  format_ = options_.format;
  if (format_ == CorpusFormat::by_name)
    format_ = names_json_lines(file) ? CorpusFormat::json_lines : CorpusFormat::text;
}

std::optional<CorpusBlock> CorpusReader::next() {
  while (at_ == mapped_.text().size()) {
    if (file_ == files_.size()) return std::nullopt;
    open_next_file();
  }
  CorpusBlock block{.file = files_[file_ - 1].string(), .format = format_, .mapped = mapped_};
  const std::size_t begin = at_;
  const std::size_t end = std::min(mapped_.text().size(), begin + static_cast<std::size_t>(options_.block_bytes));
  while (at_ < end) block.pieces.push_back(format_ == CorpusFormat::json_lines ? next_line() : next_piece_of_text());
  block.bytes = static_cast<Index>(at_ - begin);
  return block;
}

CorpusPiece CorpusReader::next_line() {
  const std::string_view text = mapped_.text();
  const std::size_t end = std::min(text.find('\n', at_), text.size());
  const CorpusPiece piece{.bytes = text.substr(at_, end - at_), .line = ++line_, .offset = at_};
  at_ = std::min(end + 1, text.size());
  return piece;
}

std::size_t CorpusReader::find_document_end() const {
  const std::string_view text = mapped_.text();
  if (options_.split_on.empty()) return text.size();
  for (std::size_t line = at_; line < text.size();) {
    const std::size_t found = text.find(options_.split_on, line);
    if (found == std::string_view::npos) return text.size();
    const std::size_t behind = found + options_.split_on.size();
    const bool whole_line = (found == at_ || text[found - 1] == '\n') &&
                            (behind == text.size() || text[behind] == '\n' || text.substr(behind).starts_with("\r\n"));
    if (whole_line) return found;
    line = found + 1;
  }
  return text.size();
}

CorpusPiece CorpusReader::next_piece_of_text() {
  const std::string_view text = mapped_.text();
  if (at_ >= document_end_) document_end_ = find_document_end();
  const std::string_view document = text.substr(at_, document_end_ - at_);
  const std::size_t size = tokenizer_.next_cut(document, static_cast<std::size_t>(options_.block_bytes));
  CorpusPiece piece{.bytes = document.substr(0, size), .ends_document = size == document.size(), .offset = at_};
  at_ += size;
  if (piece.ends_document && document_end_ < text.size()) {  // the separator stands here: step over its line
    at_ = std::min(text.find('\n', document_end_), text.size() - 1) + 1;
    document_end_ = at_;
  }
  return piece;
}

}  // namespace megalith::data
