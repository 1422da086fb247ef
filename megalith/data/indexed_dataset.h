#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::data {

// Token files of Megatron-LM. PREFIX.bin holds the ids of all documents one after the other. PREFIX.idx lists where
// each begins. All numbers are little-endian. PREFIX.idx, version 1:
//   9 bytes  "MMIDIDX\0\0"
//   u64      version = 1
//   u8       type of an id in .bin: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floats: refused)
//   u64      N sequences
//   u64      D boundaries of documents
//   i32 [N]  length of each sequence, in ids
//   i64 [N]  where each sequence begins in .bin, in bytes
//   i64 [D]  the sequence that begins each document; the first is 0, the last is N
// Source: megatron/core/datasets/indexed_dataset.py of NVIDIA/Megatron-LM.

enum class IdType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
std::size_t id_bytes(IdType type);
std::string_view id_type_name(IdType type);
/// The type that Megatron takes: u16 for fewer than 65,500 ids, else i32.
IdType id_type_for(Index vocab_size);

/// PREFIX.bin and PREFIX.idx of a prefix.
io::Path bin_path(const io::Path& prefix);
io::Path idx_path(const io::Path& prefix);

/// The tokens of a .bin/.idx pair as one stream, memory-mapped. Copied cheaply; safe to read from any thread.
class IndexedDataset {
 public:
  /// Checks every size and offset against both files. Reads .idx once (12 bytes per sequence) and nothing of .bin.
  /// Throws InputError naming the file, the field and the rule.
  IndexedDataset(io::Fs& fs, const io::Path& prefix);

  Index num_tokens() const { return num_tokens_; }
  Index num_sequences() const { return num_sequences_; }
  Index num_documents() const { return num_documents_; }
  IdType type() const { return type_; }
  Index sequence_length(Index sequence) const;  ///< in tokens
  Index sequence_begin(Index sequence) const;   ///< its first token; sequence may be num_sequences()
  Index document_begin(Index document) const;   ///< its first sequence; document may be num_documents()
  const io::Path& prefix() const { return prefix_; }

  /// Tokens [first, first + out.size()) of the stream. Throws InputError for an id that is negative or over 31 bits,
  /// ShapeError outside the stream.
  void copy(Index first, std::span<std::int32_t> out) const;

 private:
  io::Path prefix_;
  io::MappedFile bin_, idx_;
  IdType type_ = IdType::u16;
  Index num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
};

/// Removes the files that killed builds of a prefix left: PREFIX.{bin,idx}.tmp-<unique>. No build of it may run.
void remove_unpublished(io::Fs& fs, const io::Path& prefix);

/// Writes a .bin/.idx pair. Both are staged as PREFIX.{bin,idx}.tmp-*, synced, and renamed by finish(), .idx last. So
/// a build that ends early leaves no .idx, and nothing that looks whole. The destructor removes the staged files.
/// Keeps 12 bytes per document in memory.
class IndexedDatasetBuilder {
 public:
  enum class Existing { refuse, replace };
  enum class Writes : std::uint8_t { files, nothing };  ///< `nothing`: ids are checked and counted
  struct Options {
    Index vocab_size = 0;  ///< chooses the type of an id
    Existing existing = Existing::refuse;
    Writes writes = Writes::files;
    std::int32_t longest_sequence = 1 << 30;  ///< a longer document becomes several sequences: lengths are i32
  };
  /// `fs` must outlive the builder. Throws ConfigError when PREFIX.idx exists and may not be replaced, IoError.
  IndexedDatasetBuilder(io::Fs& fs, const io::Path& prefix, const Options& options);
  ~IndexedDatasetBuilder();
  IndexedDatasetBuilder(const IndexedDatasetBuilder&) = delete;
  IndexedDatasetBuilder& operator=(const IndexedDatasetBuilder&) = delete;

  /// Appends ids to the open document. Every id must be in [0, vocab_size).
  void add(std::span<const std::int32_t> ids);
  /// The document goes on with another sequence. Does nothing if the open sequence is empty.
  void end_sequence();
  void end_document();
  /// Publishes both files. The last document must have ended. Call once.
  void finish();

  Index num_tokens() const { return num_tokens_; }
  Index num_documents() const { return num_documents_; }

 private:
  void refuse_existing() const;
  void flush();
  void close_sequence();
  void write_index(io::OutputFile& file) const;

  io::Fs& fs_;
  io::Path prefix_, staged_bin_, staged_idx_;
  Options options_;
  IdType type_;
  std::unique_ptr<io::OutputFile> bin_;
  std::vector<std::byte> buffer_;  // ids not yet written
  // Ended sequences: 4 bytes and a bit each. They grow without copies.
  std::deque<std::int32_t> lengths_;
  std::vector<bool> ends_document_;
  std::int32_t open_length_ = 0;
  Index num_tokens_ = 0, num_documents_ = 0;
};

}  // namespace megalith::data
