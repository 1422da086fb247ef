#include "megalith/checkpoint/verify.h"

#include <map>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/shard_check.h"
#include "megalith/checkpoint/shard_io.h"

namespace megalith::checkpoint {
namespace {

struct Slice {
  const TensorRecord* tensor;
  const ShardSlice* slice;
};

/// Checks one file whole and returns the digest of what is in it.
Digest128 verify_file(io::Fs& fs, const io::Path& folder, const FileRecord& record, const std::vector<Slice>& slices,
                      Verification& result) {
  const auto report = [&result](std::string problem) {
    if (problem.empty()) return false;
    result.problems.push_back(std::move(problem));
    return true;
  };
  if (report(file_problem(fs, folder, record))) return {};
  const io::MappedFile file = fs.map(folder / record.name);
  if (file.bytes().size() != record.checksums.bytes) {
    report(str("file ", record.name, ": its size changed while it was read"));
    return {};
  }
  result.bytes += record.checksums.bytes;
  SafeTensorsHeader header;
  std::string header_problem;
  try {
    if (!is_plain(record)) header = parse_safetensors(file.bytes(), record.name);
  } catch (const InputError& error) {
    header_problem = error.what();
  }
  bool damaged = false;
  for (std::uint64_t block = 0; block < record.checksums.blocks.size(); ++block) {
    const std::string problem = block_problem(record, file.bytes(), block);
    if (!problem.empty()) damaged = report(problem + tensors_in_block(header, block));
  }
  if (damaged || report(header_problem)) return {};  // the header of a damaged file explains nothing
  StateDigest digest;
  for (const auto& [tensor, slice] : slices) {
    if (report(entry_problem(header, *tensor, *slice))) continue;
    const TensorInfo& info = *header.find(slice->entry);
    // A Tensor has no read-only form; the digest only reads.
    auto* const data = const_cast<std::byte*>(file.bytes().data() + info.begin);
    digest.add_tensor({tensor->name, tensor->shape, slice->box.offset, slice->box.shape},
                      Tensor(data, slice->box.shape, tensor->dtype));
  }
  return digest.value();
}

}  // namespace

Verification verify(io::Fs& fs, const io::Path& folder) {
  Verification result{.manifest = read_manifest(fs, folder), .problems = {}};
  const Manifest& manifest = result.manifest;
  std::map<std::string_view, std::vector<Slice>> slices;
  for (const TensorRecord& tensor : manifest.tensors) {
    for (const ShardSlice& slice : tensor.slices) slices[slice.file].push_back({&tensor, &slice});
  }
  Digest128 digest = digest_of(manifest.run);
  for (const FileRecord& record : manifest.files) {
    digest += verify_file(fs, folder, record, slices[record.name], result);
  }
  if (result.problems.empty() && digest != manifest.digest) {
    result.problems.push_back(str("state digest = ", digest.hex(), ": the manifest says ", manifest.digest.hex()));
  }
  return result;
}

}  // namespace megalith::checkpoint
