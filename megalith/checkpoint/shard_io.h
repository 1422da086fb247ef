#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/io/fs.h"

namespace megalith::checkpoint {

/// A slice of a global tensor and its values, in host memory. `values` has slice.local.numel() elements.
struct NamedPiece {
  TensorSlice slice;
  Tensor values;
};

/// "shard_00003.safetensors"
std::string shard_file_name(int rank);

/// A slice of a global tensor whose values lie elsewhere.
struct PieceInfo {
  TensorSlice slice;
  DType dtype = DType::f32;
};
/// Returns elements [first, first + count) of a piece in host memory, which stays valid until the next call.
using PieceReader = std::function<Tensor(std::size_t piece, Index first, Index count)>;

/// Writes one rank's pieces to FOLDER/file_name (safetensors), syncs and closes it, and returns its contents. Several
/// pieces of one tensor are legal. Each piece is read once, in blocks of at most `block_bytes`. Call it only on the
/// owner of each element. file_name must end with ".safetensors". Throws IoError, ShapeError.
ShardReport write_shard(io::Fs& fs, const io::Path& folder, const std::string& file_name,
                        std::span<const PieceInfo> pieces, Index block_bytes, const PieceReader& read);
/// The same for pieces in host memory.
ShardReport write_shard(io::Fs& fs, const io::Path& folder, const std::string& file_name,
                        std::span<const NamedPiece> pieces);

/// Writes a file without tensors, FOLDER/name, syncs and closes it. `name` must be one of io::kPlainFileNames. Throws
/// IoError.
ShardReport write_plain_file(io::Fs& fs, const io::Path& folder, const std::string& name, std::string_view contents);

/// The verified manifest of a published folder, which must be the folder of its step. Throws as parse_manifest.
Manifest read_manifest(io::Fs& fs, const io::Path& folder);

/// A published checkpoint, read in any sharding. Each block is verified once, when it is first needed. Use one reader
/// per rank and thread. Files are mapped, so a file that is truncated while it is read ends the process (SIGBUS).
class CheckpointReader {
 public:
  /// Verifies the manifest and the sizes of files. Throws InputError that names the problem, or CheckpointError
  /// (refused) for a newer version.
  CheckpointReader(io::Fs& fs, io::Path folder);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const io::Path& folder() const { return folder_; }
  /// Fills `into`, which has slice.local.numel() elements, from all files that hold them. Converts nothing: throws
  /// CheckpointError (refused) if there is no such tensor, or its shape or dtype differ; InputError that names file,
  /// tensor and bytes if needed data is damaged.
  void read(const TensorSlice& slice, const Tensor& into);
  /// Throws InputError if a byte of the plain files differs from the save. False if there are no plain files.
  bool verify_plain_files();
  /// Bytes whose checksums were verified so far.
  std::uint64_t verified_bytes() const { return verified_bytes_; }

 private:
  struct Shard {
    const FileRecord* record = nullptr;
    io::MappedFile file;
    SafeTensorsHeader header;
    std::vector<bool> verified;  // per block
  };
  Shard map(const std::string& file_name);
  Shard& open(const std::string& file_name);
  /// Throws unless the blocks of bytes [begin, end) are undamaged. `what` names their reader.
  void verify(Shard& shard, std::uint64_t begin, std::uint64_t end, std::string_view what);
  /// The verified bytes of a slice. Also checks that the file's own header agrees with the manifest.
  std::span<const std::byte> bytes_of(const TensorRecord& tensor, const ShardSlice& slice);

  io::Fs& fs_;
  io::Path folder_;
  Manifest manifest_;
  std::map<std::string, Shard, std::less<>> shards_;
  std::uint64_t verified_bytes_ = 0;
};

}  // namespace megalith::checkpoint
