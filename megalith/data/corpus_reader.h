#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/byte_source.h"
#include "megalith/data/json_text.h"
#include "megalith/io/fs.h"

namespace megalith::data {

enum class CorpusFormat {
  by_name,  ///< .jsonl and .ndjson are JSON lines; a file that begins as Parquet is Parquet; everything else is text
  json_lines,
  text,
  parquet
};

/// The default limit on the bytes of a line of text or JSON, a row, a document that is read as a whole, and a word. It
/// bounds the memory that a damaged or hostile input takes: some commands take 30 bytes per byte of a word.
inline constexpr Index kDefaultMaxLine = Index{16} << 20;
/// Which setting raises it.
inline constexpr std::string_view kMaxLineSetting = "--max-line, or data.max_line of a recipe, raises that";

/// A piece of one document, or all of it.
struct CorpusPiece {
  std::string_view bytes;     ///< text, or one line of JSON
  bool ends_document = true;  ///< false: the next piece goes on with the same document
  std::uint64_t line = 0;     ///< number of the JSON line or Parquet row, counted from 1
  std::uint64_t offset = 0;   ///< where a piece of text begins in its file
};

/// Pieces of one file, about block_bytes together: the unit of work of one thread.
struct CorpusBlock {
  std::string file;
  std::size_t file_number = 0;               ///< among the reader's files, counted from 0
  CorpusFormat format = CorpusFormat::text;  ///< never by_name
  ByteBlock held{};                          ///< keeps the pieces alive
  std::vector<CorpusPiece> pieces{};
  Index bytes = 0;  ///< of the stored file that were read for it
};

/// For OrderedWork: the memory of the pieces.
inline std::size_t held_bytes(const CorpusBlock& block) {
  std::size_t bytes = 0;
  for (const CorpusPiece& piece : block.pieces) bytes += piece.bytes.size();
  return bytes;
}

class DocumentReader;

/// Cuts files into blocks, one file after the other. It cuts where encoding the pieces one by one gives the ids of the
/// whole. A file is opened when its turn comes. One thread at a time.
class CorpusReader {
 public:
  struct Options {
    CorpusFormat format = CorpusFormat::by_name;
    std::string split_on{};                  ///< the line between documents of a text; empty: a file is one document
    Index block_bytes = 1 << 20;             ///< a piece is longer where the text has no place to cut
    Index max_line_bytes = kDefaultMaxLine;  ///< of a line, and of text without a place to cut
    std::string key = "text";                ///< the column of a Parquet file
  };
  /// The smallest place p >= from, p > 0, where a text can be cut, else its size: Tokenizer::next_cut(). The same
  /// place must result when more text follows.
  using NextCut = std::function<std::size_t(std::string_view text, std::size_t from)>;
  /// Throws InputError for a missing file or a folder, before anything is read.
  CorpusReader(io::Fs& fs, std::vector<io::Path> files, NextCut next_cut, const Options& options);
  ~CorpusReader();

  /// The next block; nothing at the end. Blocks may be empty.
  std::optional<CorpusBlock> next();
  Index total_bytes() const { return total_bytes_; }

 private:
  /// A range of the window.
  struct Piece {
    std::size_t begin = 0, size = 0;
    bool ends_document = true;
  };
  void open_next_file();
  bool next_lines(CorpusBlock& block);
  bool next_text(CorpusBlock& block);
  bool next_piece(std::size_t& at, std::vector<Piece>& pieces);
  bool extend_text();
  void require_lines();
  void require_cut(std::size_t at, std::size_t stretch) const;
  std::size_t find_separator(std::size_t at, std::size_t from) const;

  io::Fs& fs_;
  std::vector<io::Path> files_;
  NextCut next_cut_;
  Options options_;
  Index total_bytes_ = 0;

  std::size_t file_ = 0;                   // the open file, counted from 1; 0 before the first
  std::unique_ptr<DocumentReader> lines_;  // the open file, if it has JSON lines or rows
  std::unique_ptr<ByteSource> text_;       // the open file, if it is a text
  bool is_document_begin_ = true;          // whether a document begins at the window of the text
  char before_window_ = '\n';
  std::uint64_t text_offset_ = 0;    // where the window begins
  std::uint64_t seen_ = 0;           // lines up to here are known to be short enough
  std::uint64_t line_begin_ = 0;     // where the line begins that has not ended at seen_
  std::uint64_t stored_before_ = 0;  // bytes of the open file that earlier blocks counted
};

/// Returns the text of pieces. Keeps its memory from one piece to the next; one per thread.
class CorpusText {
 public:
  enum class Invalid {
    fail,    ///< InputError naming file and byte
    replace  ///< each maximal part that is not UTF-8 becomes U+FFFD
  };
  explicit CorpusText(std::string key, Invalid invalid = Invalid::fail) : json_(std::move(key)), invalid_(invalid) {}
  /// Valid until the next call and as long as the block. UTF-8 for a JSON line; for others with Invalid::replace only.
  std::string_view raw(const CorpusBlock& block, const CorpusPiece& piece);
  /// Always UTF-8. Throws InputError naming file and line, row or byte.
  std::string_view of(const CorpusBlock& block, const CorpusPiece& piece);
  /// Throws InputError: byte `offset` of the piece's text breaks `rule`.
  [[noreturn]] static void fail(const CorpusBlock& block, const CorpusPiece& piece, std::size_t offset,
                                std::string_view rule);

 private:
  JsonText json_;
  Invalid invalid_;
  std::string repaired_;
};

/// Whether a file of this name holds JSON lines, compressed or not.
bool names_json_lines(const io::Path& file);

/// "auto" (by name), "jsonl", "text" or "parquet"; throws ConfigError for another.
CorpusFormat format_named(std::string_view name);

/// Throws InputError, naming similar files in the same folder, unless `file` exists and is no folder. `what` names the
/// use of the file: "data.train".
void require_file(io::Fs& fs, const io::Path& file, std::string_view what);

}  // namespace megalith::data
