#include "megalith/checkpoint/shard_io.h"

#include <algorithm>
#include <functional>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/shard_check.h"
#include "megalith/io/reader.h"
#include "megalith/io/save_protocol.h"

namespace megalith::checkpoint {
namespace {

void check_slice(const std::string& file_name, const TensorSlice& slice) {
  if (slice.global.checked_numel() && is_inside(box_of(slice), slice.global)) return;
  throw ShapeError(str("[", file_name, "] tensor ", slice.name, ": a slice ", slice.local, " of ", slice.global,
                       ": must lie inside"));
}

/// The global name, or "name#2", ... for further parts of the same tensor.
std::string entry_name(const std::string& name, std::set<std::string>& taken) {
  std::string entry = name;
  for (int part = 2; !taken.insert(entry).second; ++part) entry = str(name, '#', part);
  return entry;
}

}  // namespace

std::string shard_file_name(int rank) {
  std::string digits = std::to_string(rank);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return str("shard_", digits, ".safetensors");
}

ShardReport write_shard(io::Fs& fs, const io::Path& folder, const std::string& file_name,
                        std::span<const PieceInfo> pieces, Index block_bytes, const PieceReader& read) {
  if (!file_name.ends_with(".safetensors")) {
    throw InternalError(str("[write_shard] file = ", file_name, ": must end with .safetensors"));
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_slice(file_name, pieces[i].slice);
    order.push_back(i);
  }
  // Wide elements first, so that every tensor is aligned in the file.
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return size_of(pieces[i].dtype); });

  ShardReport report;
  std::set<std::string> taken;
  std::vector<SafeTensorsWriter::Entry> entries;
  for (const std::size_t i : order) {
    const auto& [slice, dtype] = pieces[i];
    const std::string entry = entry_name(slice.name, taken);
    entries.push_back({entry, dtype, slice.local});
    report.pieces.push_back({slice, dtype, entry});
  }
  StateDigest digest;
  SafeTensorsWriter writer(fs, folder / file_name, std::move(entries));
  for (const std::size_t i : order) {
    const auto& [slice, dtype] = pieces[i];
    for_each_block(slice, block_bytes / size_of(dtype), [&](const TensorSlice& block, Index first) {
      const Tensor values = read(i, first, block.local.numel());
      digest.add_tensor(block, values);
      writer.write(values);
    });
  }
  report.file = {file_name, writer.finish()};
  report.digest = digest.value();
  return report;
}

ShardReport write_shard(io::Fs& fs, const io::Path& folder, const std::string& file_name,
                        std::span<const NamedPiece> pieces) {
  std::vector<PieceInfo> infos;
  for (const NamedPiece& piece : pieces) {
    const TensorSlice& slice = piece.slice;
    if (slice.local.checked_numel() != piece.values.numel())
      throw ShapeError(str("[", file_name, "] tensor ", slice.name, ": values ", piece.values.shape(), " for a slice ",
                           slice.local, ": must have its elements"));
    infos.push_back({slice, piece.values.dtype()});
  }
  constexpr Index kBlockBytes = Index{64} << 20;
  return write_shard(fs, folder, file_name, infos, kBlockBytes, [&](std::size_t piece, Index first, Index count) {
    const Tensor& values = pieces[piece].values;
    return values.reshaped({values.numel()}).rows(first, count);
  });
}

ShardReport write_plain_file(io::Fs& fs, const io::Path& folder, const std::string& name, std::string_view contents) {
  ShardReport report;
  report.file.name = name;
  if (!is_plain(report.file)) throw InternalError(str("[write_plain_file] name = ", name, ": is none of a plain file"));
  io::BlockChecksums checksums;
  checksums.update(std::as_bytes(std::span(contents)));
  report.file.checksums = checksums.finish();
  io::write_file(fs, folder / name, contents);
  return report;
}

Manifest read_manifest(io::Fs& fs, const io::Path& folder) {
  const io::Path path = folder / io::kManifestName;
  const io::MappedFile file = fs.map(path);
  Manifest manifest = parse_manifest(file.text(), path.string());
  const auto named = io::parse_step_folder(folder.filename().string());
  if (named && named->step != manifest.run.step) {
    throw InputError(str("[", path.string(), "] step = ", manifest.run.step, ": the folder is ", named->name(),
                         "; this manifest belongs to another one"));
  }
  return manifest;
}

CheckpointReader::CheckpointReader(io::Fs& fs, io::Path folder)
    : fs_(fs), folder_(std::move(folder)), manifest_(read_manifest(fs, folder_)) {
  for (const FileRecord& record : manifest_.files) {
    const std::string problem = file_problem(fs_, folder_, record);
    if (!problem.empty()) throw InputError(str("[", folder_.string(), "] ", problem));
  }
}

CheckpointReader::Shard CheckpointReader::map(const std::string& file_name) {
  Shard shard;
  shard.record = manifest_.find_file(file_name);
  shard.file = fs_.map(folder_ / file_name);
  if (shard.file.bytes().size() != shard.record->checksums.bytes) {  // the size had been right when we were made
    throw InputError(str("[", folder_.string(), "] file ", file_name, ": its size changed while it was read"));
  }
  shard.verified.resize(shard.record->checksums.blocks.size());
  return shard;
}

CheckpointReader::Shard& CheckpointReader::open(const std::string& file_name) {
  const auto known = shards_.find(file_name);
  if (known != shards_.end()) return known->second;
  Shard shard = map(file_name);
  io::Reader length(shard.file.bytes(), file_name);
  const std::uint64_t header_bytes = length.u64("header length");
  length.need(header_bytes, "header");
  verify(shard, 0, 8 + header_bytes, "the header");
  shard.header = parse_safetensors(shard.file.bytes(), (folder_ / file_name).string());
  return shards_.emplace(file_name, std::move(shard)).first->second;
}

void CheckpointReader::verify(Shard& shard, std::uint64_t begin, std::uint64_t end, std::string_view what) {
  if (begin == end) return;
  for (std::uint64_t block = begin / io::kChecksumBlockBytes; block <= (end - 1) / io::kChecksumBlockBytes; ++block) {
    if (shard.verified[block]) continue;
    const std::string problem = block_problem(*shard.record, shard.file.bytes(), block);
    if (!problem.empty()) {
      throw InputError(str("[", folder_.string(), "] ", problem, ": damaged; they hold ", what));
    }
    shard.verified[block] = true;
    verified_bytes_ +=
        std::min(io::kChecksumBlockBytes, shard.record->checksums.bytes - block * io::kChecksumBlockBytes);
  }
}

bool CheckpointReader::verify_plain_files() {
  bool any = false;
  for (const FileRecord& file : manifest_.files) {
    if (!is_plain(file)) continue;
    any = true;
    Shard plain = map(file.name);
    verify(plain, 0, file.checksums.bytes, "the vocabulary");
  }
  return any;
}

std::span<const std::byte> CheckpointReader::bytes_of(const TensorRecord& tensor, const ShardSlice& slice) {
  Shard& shard = open(slice.file);
  const std::string problem = entry_problem(shard.header, tensor, slice);
  if (!problem.empty()) throw InputError(str("[", folder_.string(), "] ", problem));
  const TensorInfo& info = *shard.header.find(slice.entry);
  verify(shard, info.begin, info.end, str("tensor \"", io::printable(tensor.name), '"'));
  return shard.file.bytes().subspan(info.begin, info.end - info.begin);
}

void CheckpointReader::read(const TensorSlice& slice, const Tensor& into) {
  const Box wanted = box_of(slice);
  if (!is_inside(wanted, slice.global) || into.numel() != slice.local.numel()) {
    throw ShapeError(str("[read ", slice.name, "] destination ", into.shape(), " for a slice ", slice.local, " of ",
                         slice.global, ": must have its elements and lie inside"));
  }
  const TensorRecord* const tensor = manifest_.find(slice.name);
  const std::string what = str("[", folder_.string(), "] tensor \"", io::printable(slice.name), "\": ");
  if (tensor == nullptr) {
    throw CheckpointError(CheckpointError::Kind::refused, what + "is not in the checkpoint");
  }
  if (tensor->shape != slice.global || tensor->dtype != into.dtype()) {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str(what, "is ", name_of(tensor->dtype), ' ', tensor->shape,
                              " in the checkpoint, the run wants ", name_of(into.dtype()), ' ', slice.global));
  }
  for (const ShardSlice& part : tensor->slices) {
    if (!intersect(part.box, wanted)) continue;
    copy_common(part.box, bytes_of(*tensor, part).data(), wanted, static_cast<std::byte*>(into.raw()),
                size_of(tensor->dtype));
  }
}

}  // namespace megalith::checkpoint
