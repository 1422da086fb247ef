#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/reshard.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_tools.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/command.h"
#include "apps/program/grid_text.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"

namespace megalith::apps {
namespace {

struct ReshardOptions {
  std::string from, to, grid;
  std::vector<std::string> only;
};

/// Whether a name has the form of a pattern, in which `*` stands for any text.
bool matches(std::string_view name, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t at = star; at <= name.size(); ++at)
    if (matches(name.substr(at), rest)) return true;
  return false;
}

/// The tensors that --only names, whole. Throws ConfigError with every pattern that names none.
std::vector<checkpoint::PieceInfo> named_tensors(const checkpoint::Manifest& manifest,
                                                 const std::vector<std::string>& patterns) {
  Problems problems;
  std::vector<std::string_view> names;
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) names.push_back(tensor.name);
  for (const std::string& pattern : patterns) {
    if (std::ranges::any_of(names, [&](std::string_view name) { return matches(name, pattern); })) continue;
    const std::string_view near = nearest(pattern, names);
    problems.add("--only", pattern,
                 near.empty() ? "is the name of no tensor; `checkpoint info` lists them, `*` stands for any text"
                              : str("is the name of no tensor; did you mean ", near, "?"));
  }
  problems.throw_if_any("checkpoint reshard");
  std::vector<checkpoint::PieceInfo> pieces;
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) {
    if (std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches(tensor.name, pattern); }))
      pieces.push_back({TensorSlice::whole(tensor.name, tensor.shape), tensor.dtype});
  }
  return pieces;
}

/// Writes some tensors, whole, to one safetensors file, which appears whole or not at all.
void export_tensors(io::Fs& fs, checkpoint::CheckpointReader& reader, const ReshardOptions& options) {
  const std::vector<checkpoint::PieceInfo> pieces = named_tensors(reader.manifest(), options.only);
  const io::Path target = options.to, folder = target.has_parent_path() ? target.parent_path() : io::Path(".");
  if (target.extension() != ".safetensors")
    throw ConfigError(
        str("--out = ", options.to, ": with --only a file is written, whose name must end with .safetensors"));
  if (fs.exists(target)) throw ConfigError(str("--out = ", options.to, ": exists already; choose another"));
  if (!fs.is_dir(folder)) throw ConfigError(str("--out = ", options.to, ": there is no folder ", folder.string()));
  const std::string name = target.stem().string() + io::temporary_suffix() + ".safetensors";
  constexpr Index kBlockBytes = Index{64} << 20;
  const Buffer memory(kBlockBytes);
  Index bytes = 0;
  try {
    const checkpoint::ShardReport report = checkpoint::write_shard(
        fs, folder, name, pieces, kBlockBytes, [&](std::size_t piece, Index first, Index count) {
          return train::read_block(reader, pieces[piece], first, count, memory);
        });
    bytes = static_cast<Index>(report.file.checksums.bytes);
    fs.rename(folder / name, target);
  } catch (...) {
    if (fs.exists(folder / name)) fs.unlink(folder / name);
    throw;
  }
  fs.sync_dir(folder);
  std::printf("%s: %zu of %zu tensors, %s\n", target.c_str(), pieces.size(), reader.manifest().tensors.size(),
              human_bytes(bytes).c_str());
}

void reshard_whole(io::Fs& fs, checkpoint::CheckpointReader& reader, const ReshardOptions& options) {
  config::RunConfig recipe = recipe_of(reader);
  recipe.model.padded_vocab_size.reset();  // follows from tp
  recipe.moe.dispatcher.reset();           // all give the same results, and which can run follows from the grid
  const config::RunPlan plan = config::resolve(on_grid(std::move(recipe), "--grid", options.grid));
  const io::Path out = options.to, folder = out / "checkpoints";
  if (!io::published(fs, folder).empty())
    throw ConfigError(str("--out = ", out.string(), ": holds checkpoints already; choose another"));
  const io::RunLock lock = io::RunLock::take(out);
  const io::StepFolder written = train::reshard(reader, plan, fs, folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(fs, folder / written.name());
  std::printf("%s: %s, %zu files with %s, state digest %s\n", (folder / written.name()).c_str(),
              manifest.run.grid.c_str(), manifest.files.size(), human_bytes(manifest.bytes()).c_str(),
              manifest.digest.hex().c_str());
}

void reshard_checkpoint(const ReshardOptions& options) {
  if (options.to.empty()) throw ConfigError("--out = \"\": must name a folder, or with --only a file");
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  checkpoint::CheckpointReader reader(*fs, checkpoint_folder(*fs, options.from, checkpoint::OnCorrupt::previous));
  if (options.only.empty())
    reshard_whole(*fs, reader, options);
  else
    export_tensors(*fs, reader, options);
}

}  // namespace

void add_checkpoint_reshard(CLI::App& checkpoint_command) {
  const auto options = std::make_shared<ReshardOptions>();
  CLI::App* const leaf = checkpoint_command.add_subcommand(
      "reshard", "Write the files that the ranks of another grid would have saved, or some tensors as one file");
  leaf->add_option("from", options->from, "A step_* folder, the folder of them, or OUT of a run: then the newest")
      ->required();
  CLI::Option* const grid = leaf->add_option("--grid", options->grid, str("The grid: ", kGridForm));
  leaf->add_option(
          "--only", options->only,
          "Write only tensors of this name, whole, to a .safetensors file; * stands for any text (may be repeated)")
      ->take_all()
      ->allow_extra_args(false)
      ->excludes(grid);
  add_output(*leaf, "--out", options->to, "Folder to write, which must not hold checkpoints yet; with --only a file");
  leaf->callback([options, grid] {
    if (options->only.empty() && grid->count() == 0)
      throw ConfigError("checkpoint reshard: give --grid, or --only for some tensors");
    reshard_checkpoint(*options);
  });
}

}  // namespace megalith::apps
