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
  by_name,  ///< .jsonl and .ndjson are JSON lines; what begins as Parquet is; everything else is text
  json_lines,
  text,
  parquet
};

/// Most bytes of a line of text or JSON, of a row, of a document that is read as a whole and of a word, where no
/// setting is given. It bounds the memory of a damaged or hostile input: some commands take 30 bytes per byte of a
/// word.
inline constexpr Index kDefaultMaxLine = Index{16} << 20;
/// Which setting raises it.
inline constexpr std::string_view kMaxLineSetting = "--max-line, or data.max_line of a recipe, raises that";

/// A piece of one document, or all of it.
struct CorpusPiece {
  std::string_view bytes;     ///< text, or one line of JSON
  bool ends_document = true;  ///< false: the next piece goes on with the same document
  std::uint64_t line = 0;     ///< of JSON lines, and row of Parquet, counted from 1
  std::uint64_t offset = 0;   ///< of text: where the piece begins in its file
};

/// Pieces of one file, about as many bytes as were asked for: the unit of work of one thread.
struct CorpusBlock {
  std::string file;
  std::size_t file_number = 0;               ///< of the reader's files, counted from 0
  CorpusFormat format = CorpusFormat::text;  ///< never by_name
  ByteBlock held{};                          ///< keeps the pieces alive
  std::vector<CorpusPiece> pieces{};
  Index bytes = 0;  ///< of the file as it is stored that were read for it
};

/// For OrderedWork: what the pieces take.
inline std::size_t held_bytes(const CorpusBlock& block) {
  std::size_t bytes = 0;
  for (const CorpusPiece& piece : block.pieces) bytes += piece.bytes.size();
  return bytes;
}

class DocumentReader;

/// Cuts files into blocks, one file after the other, at places where encoding the pieces one by one gives the ids of
/// the whole. A file is opened when its turn comes. One thread at a time.
class CorpusReader {
 public:
  struct Options {
    CorpusFormat format = CorpusFormat::by_name;
    std::string split_on{};       ///< a line of text that stands between documents; empty: a file is one document
    Index block_bytes = 1 << 20;  ///< a longer piece happens where the text has no place to cut
    Index max_line_bytes = kDefaultMaxLine;  ///< of text also a stretch with no place to cut
    std::string key = "text";                ///< the column of a Parquet file
  };
  /// The smallest place p >= from, p > 0, where a text can be cut, else its size: Tokenizer::next_cut(). Of a text
  /// that goes on behind `text`, too.
  using NextCut = std::function<std::size_t(std::string_view text, std::size_t from)>;
  /// Throws InputError for a file that is missing or a folder, before anything is read.
  CorpusReader(io::Fs& fs, std::vector<io::Path> files, NextCut next_cut, const Options& options);
  ~CorpusReader();

  /// The next block; nothing at the end. Blocks may be empty.
  std::optional<CorpusBlock> next();
  Index total_bytes() const { return total_bytes_; }

 private:
  /// Where a piece stands in the window.
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

  std::size_t file_ = 0;                   // the one that is open, counted from 1; 0 before the first
  std::unique_ptr<DocumentReader> lines_;  // of an open file of JSON lines or rows
  std::unique_ptr<ByteSource> text_;       // of an open text
  bool is_document_begin_ = true;          // whether a document of the text begins at its window
  char before_window_ = '\n';
  std::uint64_t text_offset_ = 0;    // of the window
  std::uint64_t seen_ = 0;           // of the text, whose lines are known to be short enough up to there
  std::uint64_t line_begin_ = 0;     // of the line that has not ended there
  std::uint64_t stored_before_ = 0;  // bytes of the open file that earlier blocks have counted
};

/// Gives the text of pieces. Keeps its memory from one to the next; one per thread.
class CorpusText {
 public:
  enum class Invalid {
    fail,    ///< InputError naming file and byte
    replace  ///< each maximal part that is not UTF-8 becomes U+FFFD
  };
  explicit CorpusText(std::string key, Invalid invalid = Invalid::fail) : json_(std::move(key)), invalid_(invalid) {}
  /// Valid until the next call and as long as the block. UTF-8 of a JSON line; of others only with Invalid::replace.
  std::string_view raw(const CorpusBlock& block, const CorpusPiece& piece);
  /// UTF-8 of each. Throws InputError naming file and line, row or byte.
  std::string_view of(const CorpusBlock& block, const CorpusPiece& piece);
  /// Throws InputError: what is wrong with byte `offset` of the piece's text.
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

/// Throws InputError, naming similar files in its folder, unless `file` exists and is no folder. `what` says what the
/// file is for: "data.train".
void require_file(io::Fs& fs, const io::Path& file, std::string_view what);

}  // namespace megalith::data
