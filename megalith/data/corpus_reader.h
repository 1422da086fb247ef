#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/tokenizer.h"
#include "megalith/io/fs.h"

namespace megalith::data {

enum class CorpusFormat {
  by_name,  ///< .jsonl and .ndjson are JSON lines, everything else is text
  json_lines,
  text
};

/// A piece of one document, or all of it. It points into a mapped file.
struct CorpusPiece {
  std::string_view bytes;     ///< text, or one line of JSON
  bool ends_document = true;  ///< false: the next piece goes on with the same document
  std::uint64_t line = 0;     ///< of JSON lines, counted from 1
  std::uint64_t offset = 0;   ///< of text: where the piece begins in its file
};

/// Pieces of one file, about as many bytes as were asked for: the unit of work of one thread.
struct CorpusBlock {
  std::string file;
  CorpusFormat format = CorpusFormat::text;  ///< never by_name
  io::MappedFile mapped;                     ///< keeps the pieces alive
  std::vector<CorpusPiece> pieces{};
  Index bytes = 0;  ///< of the file that it covers
};

/// Cuts files into blocks, one file after the other, at places where encoding the pieces one by one gives the ids of
/// the whole. A file is mapped when its turn comes. One thread at a time.
class CorpusReader {
 public:
  struct Options {
    CorpusFormat format = CorpusFormat::by_name;
    std::string split_on{};       ///< a line of text that stands between documents; empty: a file is one document
    Index block_bytes = 1 << 20;  ///< a longer piece happens where the text has no place to cut
  };
  /// Throws InputError for a file that is missing or a folder, before anything is read.
  CorpusReader(io::Fs& fs, std::vector<io::Path> files, const Tokenizer& tokenizer, const Options& options);

  /// The next block; nothing at the end. Blocks may be empty.
  std::optional<CorpusBlock> next();
  Index total_bytes() const { return total_bytes_; }

 private:
  void open_next_file();
  CorpusPiece next_line();
  CorpusPiece next_piece_of_text();
  std::size_t find_document_end() const;

  io::Fs& fs_;
  std::vector<io::Path> files_;
  const Tokenizer& tokenizer_;
  Options options_;
  Index total_bytes_ = 0;

  std::size_t file_ = 0;  // the one that is open, counted from 1; 0 before the first
  CorpusFormat format_ = CorpusFormat::text;
  io::MappedFile mapped_;
  std::size_t at_ = 0;
  std::size_t document_end_ = 0;  // of the text document that at_ is in
  std::uint64_t line_ = 0;
};

/// Whether a file of this name holds JSON lines.
bool names_json_lines(const io::Path& file);

/// Throws InputError, naming similar files in its folder, unless `file` exists and is no folder. `what` says what the
/// file is for: "data.train".
void require_file(io::Fs& fs, const io::Path& file, std::string_view what);

}  // namespace megalith::data
