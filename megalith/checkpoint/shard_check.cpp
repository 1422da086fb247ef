#include "megalith/checkpoint/shard_check.h"

#include <algorithm>

#include "megalith/base/str.h"
#include "megalith/io/reader.h"

namespace megalith::checkpoint {

std::string file_problem(io::Fs& fs, const io::Path& folder, const FileRecord& record) {
  const io::Path path = folder / record.name;
  if (!fs.exists(path)) return str("file ", record.name, ": is missing");
  if (fs.is_dir(path)) return str("file ", record.name, ": is a folder");
  const std::uint64_t size = fs.file_size(path);
  if (size == record.checksums.bytes) return "";
  return str("file ", record.name, ": has ", size, " bytes, the manifest says ", record.checksums.bytes);
}

std::string block_problem(const FileRecord& record, std::span<const std::byte> file, std::uint64_t block) {
  const std::uint64_t begin = block * io::kChecksumBlockBytes;
  const std::uint64_t end = std::min(begin + io::kChecksumBlockBytes, record.checksums.bytes);
  const io::Hash128 found = io::checksum(file.subspan(begin, end - begin));
  const io::Hash128& saved = record.checksums.blocks[block];
  if (found == saved) return "";
  return str("file ", record.name, ", bytes ", begin, " to ", end, ": checksum = ", found.hex(),
             ", at the save it was ", saved.hex());
}

std::string tensors_in_block(const SafeTensorsHeader& header, std::uint64_t block) {
  constexpr int kShown = 3;
  const std::uint64_t begin = block * io::kChecksumBlockBytes, end = begin + io::kChecksumBlockBytes;
  std::string names;
  int count = 0;
  for (const TensorInfo& info : header.tensors) {
    if (info.begin >= end || info.end <= begin) continue;
    if (++count <= kShown) names += str(count > 1 ? ", " : "", io::printable(info.name));
  }
  if (count == 0) return "";
  return str(count == 1 ? " (tensor " : " (tensors ", names,
             count > kShown ? str(" and ", count - kShown, " more") : "", ')');
}

std::string entry_problem(const SafeTensorsHeader& header, const TensorRecord& tensor, const ShardSlice& slice) {
  const TensorInfo* const info = header.find(slice.entry);
  const std::string what = str("file ", slice.file, ", tensor \"", io::printable(slice.entry), "\": ");
  if (info == nullptr) return what + "is not in the file";
  if (info->dtype == tensor.dtype && info->shape == slice.box.shape) return "";
  return str(what, "the file has ", name_of(info->dtype), ' ', info->shape, ", the manifest says ",
             name_of(tensor.dtype), ' ', slice.box.shape);
}

}  // namespace megalith::checkpoint
