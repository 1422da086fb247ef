#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/byte_source.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/json_text.h"
#include "megalith/data/parquet_file.h"

namespace megalith::data {

/// One document as it stands in its file: a line of JSON, or a text.
struct RawDocument {
  std::string_view bytes{};
  std::uint64_t line = 0;     ///< number of the JSON line or Parquet row, counted from 1
  std::uint64_t offset = 0;   ///< where a text begins, in bytes
  bool ends_document = true;  ///< false: the next one goes on with the same text (Cut::texts)
  bool is_too_long = false;   ///< its bytes were left out (TooLong::mark)
};

/// Consecutive documents of one file: the unit of work of one thread.
struct DocumentBlock {
  std::string file{};
  CorpusFormat format = CorpusFormat::text;  ///< never by_name
  std::uint64_t first = 0;                   ///< number of the first document in its file, counted from 0
  ByteBlock held{};                          ///< the memory that the documents' bytes point into
  std::vector<RawDocument> documents{};
};

/// For OrderedWork: the memory of the documents.
inline std::size_t held_bytes(const DocumentBlock& block) {
  std::size_t bytes = 0;
  for (const RawDocument& document : block.documents) bytes += document.bytes.size();
  return std::max(bytes, block.held.bytes.size());
}

/// The format of a file: `asked`, or else by its name and, for Parquet, its first bytes. Never by_name. Throws
/// InputError for a table (refuse_table()) unless a format is asked for.
CorpusFormat format_of(io::Fs& fs, const io::Path& file, CorpusFormat asked);

/// Cuts one file into blocks of whole documents. Documents are lines of JSON that are not blank, rows of Parquet that
/// are not null, or the whole text of a file.
class DocumentReader {
 public:
  enum class Cut {
    documents,  ///< between documents only
    texts       ///< within texts too, at ASCII white space: blocks stay small
  };
  enum class TooLong {
    fail,  ///< next() throws DocumentError
    mark   ///< the document has no bytes, and DocumentText::of() throws it; memory does not grow with it
  };
  struct Options {
    CorpusFormat format = CorpusFormat::by_name;
    std::size_t block_bytes = std::size_t{1} << 20;  ///< a longer document makes a longer block
    std::size_t max_document_bytes = kDefaultMaxLine;
    Cut cut = Cut::documents;
    TooLong too_long = TooLong::fail;
    std::string key = "text";  ///< the column of a Parquet file
  };
  /// Throws InputError for a file that is missing or a folder.
  DocumentReader(io::Fs& fs, const io::Path& file, const Options& options);

  /// The next block; nothing at the end. Throws InputError naming file and line of a document that is too long.
  std::optional<DocumentBlock> next();
  std::uint64_t documents() const { return documents_; }  ///< that ended in the blocks so far
  std::uint64_t stored_bytes() const { return source_ ? source_->stored_bytes() : parquet_->stored_bytes(); }

 private:
  std::size_t end_of_lines();
  std::size_t end_of_text();
  void leave_out_line();
  void cut_lines(DocumentBlock& block);
  std::string file_;
  Options options_;
  std::unique_ptr<ByteSource> source_;    // text and lines
  std::unique_ptr<ParquetFile> parquet_;  // rows
  CorpusFormat format_;
  std::uint64_t documents_ = 0, lines_ = 0;
  std::uint64_t text_read_ = 0;
  bool text_is_read_ = false;
  bool line_is_too_long_ = false;  // the line that begins at the window
  bool text_is_too_long_ = false;
};

/// Returns the text of documents. Keeps its memory from one document to the next; one per thread.
class DocumentText {
 public:
  explicit DocumentText(std::string key, std::string other_key = {}) : json_(std::move(key), std::move(other_key)) {}
  /// UTF-8, valid until the next call and as long as the block. Throws DocumentError naming file and line (JSON) or
  /// byte.
  std::string_view of(const DocumentBlock& block, const RawDocument& document);
  /// The reader of the last line of JSON.
  const JsonText& json() const { return json_; }

 private:
  JsonText json_;
};

}  // namespace megalith::data
