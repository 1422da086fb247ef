#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/checkpoint/box.h"
#include "megalith/checkpoint/state_digest.h"
#include "megalith/io/checksum.h"

namespace megalith::checkpoint {

/// The version of manifests that this program writes and reads. 1: all files hold tensors. 2: there are also plain
/// files.
inline constexpr int kManifestVersion = 2;

/// A file of a checkpoint: safetensors, or a plain file (io::kPlainFileNames).
struct FileRecord {
  std::string name;  ///< within the folder
  io::FileChecksums checksums;
  bool operator==(const FileRecord&) const = default;
};

/// A part of a global tensor in a file.
struct ShardSlice {
  std::string file;
  std::string
      entry;  ///< the tensor's name inside the file; differs from the global one when a file holds several parts
  Box box;
  bool operator==(const ShardSlice&) const = default;
};

struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<ShardSlice> slices;
  bool operator==(const TensorRecord&) const = default;
};

/// What a run saves in addition to its tensors.
struct RunState {
  Index step = 0;
  std::string config_hash;                                    ///< of everything that must match at resume
  std::string grid;                                           ///< the grid that saved, for readers: "tp2 pp2 dp4"
  std::map<std::string, std::int64_t, std::less<>> integers;  ///< data position, counters: part of the digest
  std::map<std::string, double, std::less<>> reals;           ///< loss scale, detector values: part of the digest
  std::map<std::string, std::string, std::less<>> texts;      ///< the resolved recipe: not part of the digest
  bool operator==(const RunState&) const = default;
};

/// The description that turns a folder of shards into a checkpoint. In the text form the manifest's own checksum comes
/// first, at a fixed position. It is verified over the raw bytes.
struct Manifest {
  RunState run;
  Digest128 digest;                   ///< of all tensors and of digest_of(run)
  std::vector<TensorRecord> tensors;  ///< sorted by name
  std::vector<FileRecord> files;      ///< sorted by name
  bool operator==(const Manifest&) const = default;

  const TensorRecord* find(std::string_view name) const;  ///< null if there is none
  const FileRecord* find_file(std::string_view name) const;
  Index bytes() const;  ///< of all files
};

/// The part of the state digest that comes from step, integers and reals.
Digest128 digest_of(const RunState& run);

/// The first broken rule, or "": names are sorted and unique, every slice lies in its tensor and in a listed file, and
/// every element of every tensor is covered exactly once.
std::string problem_of(const Manifest& manifest);

/// The text of MANIFEST. Throws InternalError if problem_of() finds something.
std::string manifest_text(const Manifest& manifest);

/// Whether a file holds no tensors.
bool is_plain(const FileRecord& file);

/// Throws InputError that names what is damaged or wrong, or CheckpointError (refused) for a newer version.
Manifest parse_manifest(std::string_view text, std::string_view source);

/// What one rank wrote: its file, and the slices of tensors in it (none for a plain file).
struct ShardReport {
  struct Piece {
    TensorSlice slice;
    DType dtype = DType::f32;
    std::string entry;
    bool operator==(const Piece&) const = default;
  };
  FileRecord file;
  std::vector<Piece> pieces;
  Digest128 digest;  ///< of the pieces
  bool operator==(const ShardReport&) const = default;
};

/// The bytes that a rank sends to the rank that writes the manifest, and their inverse. parse_report throws InputError.
std::vector<std::byte> serialize_report(const ShardReport& report);
ShardReport parse_report(std::span<const std::byte> bytes, std::string_view source);

/// Joins the reports of all ranks. Throws InternalError if they do not cover every tensor exactly once: then the ranks'
/// choice of writers is wrong.
Manifest build_manifest(const RunState& run, std::span<const ShardReport> reports);

}  // namespace megalith::checkpoint
