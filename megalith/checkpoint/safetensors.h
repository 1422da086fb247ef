#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/checksum.h"
#include "megalith/io/fs.h"
#include "megalith/tensor/tensor.h"

namespace megalith::checkpoint {

// The safetensors format (github.com/huggingface/safetensors, "Format"): 8 bytes header length, little-endian; a JSON
// header; the bytes of the tensors, one after the other without gaps. Row-major, little-endian.

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  ///< the limit of the reference implementation
inline constexpr std::size_t kMaxTensors = 1'000'000;

/// The position of a tensor's bytes.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes in the file
};

struct SafeTensorsHeader {
  std::vector<TensorInfo> tensors;  ///< sorted by name
  std::map<std::string, std::string> metadata;
  /// Null if there is none of that name.
  const TensorInfo* find(std::string_view name) const;
};

/// Reads and checks the header of a whole file: sizes against the file before anything is allocated for them, offsets
/// without gap or overlap, byte counts equal to shape times dtype, no key twice, UTF-8, fixed nesting. dtypes F64 F32
/// BF16 F16 I64 I32 U64 U8, up to four dimensions. Throws InputError that names file, tensor and field.
SafeTensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source);

/// Writes a file tensor by tensor, or a tensor block by block, from memory. Computes checksums before the write. Throws
/// IoError; ShapeError if a tensor differs from the announced one.
class SafeTensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;
  };
  using Metadata = std::map<std::string, std::string>;
  /// Creates the file and writes the header. Names must be distinct and valid UTF-8.
  SafeTensorsWriter(io::Fs& fs, const io::Path& path, std::vector<Entry> entries, const Metadata& metadata = {});
  /// The next values of the next entry, in host memory: all of them, or those after the values written before.
  void write(const Tensor& values);
  /// Syncs and closes, after the last entry.
  io::FileChecksums finish();

 private:
  void put(std::span<const std::byte> bytes);
  /// Moves to the next entry with elements, when all elements of this one are written.
  void advance();

  std::string path_;
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
  Index written_ = 0;  ///< elements of the next entry
  std::unique_ptr<io::OutputFile> file_;
  io::BlockChecksums checksums_;
};

}  // namespace megalith::checkpoint
