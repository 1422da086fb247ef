#include "megalith/train/reshard.h"

#include <memory>
#include <set>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/train/run_identity.h"
#include "megalith/train/run_memory.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {
namespace {

constexpr Index kReshardBlockBytes = Index{64} << 20;

/// What a rank of the grid owns of the checkpoint's tensors.
std::vector<checkpoint::PieceInfo> pieces_of_rank(const config::RunPlan& plan, int rank,
                                                  const checkpoint::Manifest& manifest) {
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  RunMemory memory(*world, plan);
  std::vector<checkpoint::PieceInfo> pieces;
  for (const StatePiece& piece : owned_pieces(memory.stage().params(), memory.optimizers(), memory.mesh())) {
    // An imported model has no moments, and a router's rule may be newer than the checkpoint.
    if (manifest.find(piece.slice.name) != nullptr) pieces.push_back({piece.slice, piece.values.dtype()});
  }
  return pieces;
}

void require_all_tensors(const checkpoint::CheckpointReader& from, const std::set<std::string, std::less<>>& written) {
  std::string missing;
  for (const checkpoint::TensorRecord& tensor : from.manifest().tensors)
    if (!written.contains(tensor.name)) missing += str(missing.empty() ? "" : ", ", tensor.name);
  if (missing.empty()) return;
  throw CheckpointError(CheckpointError::Kind::refused,
                        str("[", from.folder().string(), "] the model of its recipe has no ", missing,
                            ": the checkpoint is of another version of megalith"));
}

std::vector<checkpoint::ShardReport> copy_plain_files(const checkpoint::CheckpointReader& from, io::Fs& fs,
                                                      const io::Path& staging) {
  std::vector<checkpoint::ShardReport> reports;
  for (const checkpoint::FileRecord& file : from.manifest().files) {
    if (!checkpoint::is_plain(file)) continue;
    const io::MappedFile text = fs.map(from.folder() / file.name);
    reports.push_back(checkpoint::write_plain_file(fs, staging, file.name, text.text()));
  }
  return reports;
}

}  // namespace

Tensor read_block(checkpoint::CheckpointReader& from, const checkpoint::PieceInfo& piece, Index first, Index count,
                  const Buffer& memory) {
  // Blocks of for_each_block() are boxes.
  const std::vector<checkpoint::Box> boxes = checkpoint::boxes_of_range(piece.slice.local, first, first + count);
  if (boxes.size() != 1) throw InternalError(str("[read_block] ", piece.slice.name, ": a block is no box"));
  const TensorSlice block = checkpoint::slice_of(piece.slice, boxes.front());
  const Tensor values = memory.view(block.local, piece.dtype);
  from.read(block, values);
  return values;
}

io::StepFolder reshard(checkpoint::CheckpointReader& from, const config::RunPlan& plan, io::Fs& fs,
                       const io::Path& folder) {
  from.verify_plain_files();
  checkpoint::RunState run = from.manifest().run;
  run.grid = config::grid_text(plan);
  run.texts[kRecipeText] = config::to_toml(plan.as_config());
  const io::Path staging = io::begin_save(fs, folder, run.step);
  try {
    std::vector<checkpoint::ShardReport> reports = copy_plain_files(from, fs, staging);
    std::set<std::string, std::less<>> written;
    const Buffer memory(kReshardBlockBytes);
    for (int rank = 0; rank < plan.grid.world_size; ++rank) {
      const std::vector<checkpoint::PieceInfo> pieces = pieces_of_rank(plan, rank, from.manifest());
      if (pieces.empty()) continue;
      for (const checkpoint::PieceInfo& piece : pieces) written.insert(piece.slice.name);
      reports.push_back(checkpoint::write_shard(fs, staging, checkpoint::shard_file_name(rank), pieces,
                                                kReshardBlockBytes, [&](std::size_t piece, Index first, Index count) {
                                                  return read_block(from, pieces[piece], first, count, memory);
                                                }));
    }
    require_all_tensors(from, written);
    const checkpoint::Manifest manifest = checkpoint::build_manifest(run, reports);
    if (manifest.digest != from.manifest().digest) {
      throw InternalError(str("[reshard] ", from.folder().string(), ": the state digest of what was written is ",
                              manifest.digest.hex(), ", that of the checkpoint ", from.manifest().digest.hex()));
    }
    return io::publish(fs, staging, checkpoint::manifest_text(manifest));
  } catch (...) {
    io::abandon(fs, staging);
    throw;
  }
}

}  // namespace megalith::train
