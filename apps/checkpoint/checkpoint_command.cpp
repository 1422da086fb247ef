#include <cmath>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_tools.h"
#include "apps/program/command.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string folder;
  std::string format = "text";
};

Index elements(const checkpoint::Manifest& manifest) {
  Index count = 0;
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) count += tensor.shape.numel();
  return count;
}

void print_text(const io::Path& folder, const checkpoint::Manifest& manifest) {
  const checkpoint::RunState& run = manifest.run;
  std::printf("%s\n  step          %lld\n  grid          %s\n  config hash   %s\n  state digest  %s\n", folder.c_str(),
              static_cast<long long>(run.step), run.grid.c_str(), run.config_hash.c_str(),
              manifest.digest.hex().c_str());
  std::printf("  tensors       %zu with %lld elements\n  files         %zu with %s\n", manifest.tensors.size(),
              static_cast<long long>(elements(manifest)), manifest.files.size(), human_bytes(manifest.bytes()).c_str());
  for (const auto& [name, value] : run.integers)
    std::printf("  %s = %lld\n", name.c_str(), static_cast<long long>(value));
  for (const auto& [name, value] : run.reals) std::printf("  %s = %s\n", name.c_str(), exact(value).c_str());
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) {
    std::printf("  %-5s %-20s %2zu slice%s  %s\n", std::string(name_of(tensor.dtype)).c_str(),
                str(tensor.shape).c_str(), tensor.slices.size(), tensor.slices.size() == 1 ? " " : "s",
                tensor.name.c_str());
  }
}

ordered_json sizes(const Shape& shape) {
  ordered_json list = ordered_json::array();
  for (int i = 0; i < shape.rank(); ++i) list.push_back(shape[i]);
  return list;
}

ordered_json to_json(const io::Path& folder, const checkpoint::Manifest& manifest) {
  ordered_json reals = ordered_json::object(), tensors = ordered_json::array(), files = ordered_json::array();
  for (const auto& [name, value] : manifest.run.reals) {
    if (std::isfinite(value)) {
      reals[name] = value;
    } else {
      reals[name] = exact(value);  // JSON has no number for it
    }
  }
  for (const checkpoint::TensorRecord& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", sizes(tensor.shape)},
                       {"slices", tensor.slices.size()}});
  }
  for (const checkpoint::FileRecord& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.checksums.bytes}, {"checksum", file.checksums.digest().hex()}});
  }
  return {{"folder", folder.string()},
          {"step", manifest.run.step},
          {"grid", manifest.run.grid},
          {"config_hash", manifest.run.config_hash},
          {"state_digest", manifest.digest.hex()},
          {"elements", elements(manifest)},
          {"bytes", manifest.bytes()},
          {"integers", manifest.run.integers},
          {"reals", reals},
          {"tensors", tensors},
          {"files", files}};
}

void info(const Options& options) {
  const auto fs = io::retrying_fs(io::posix_fs());
  const io::Path folder = checkpoint_folder(*fs, options.folder, checkpoint::OnCorrupt::previous);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(*fs, folder);
  if (options.format == "json") {
    std::printf("%s\n", to_json(folder, manifest).dump(1).c_str());
  } else {
    print_text(folder, manifest);
  }
}

void verify(const Options& options) {
  const auto fs = io::retrying_fs(io::posix_fs());
  const io::Path folder = checkpoint_folder(*fs, options.folder, checkpoint::OnCorrupt::fail);
  const checkpoint::Verification result = checkpoint::verify(*fs, folder);
  const bool whole = result.problems.empty();
  if (options.format == "json") {
    const ordered_json report = {{"folder", folder.string()},
                                 {"valid", whole},
                                 {"step", result.manifest.run.step},
                                 {"bytes", result.bytes},
                                 {"state_digest", result.manifest.digest.hex()},
                                 {"problems", result.problems}};
    std::printf("%s\n", report.dump(1).c_str());
  } else if (whole) {
    std::printf("%s: whole: %zu tensors, %zu files, %s, state digest %s\n", folder.c_str(),
                result.manifest.tensors.size(), result.manifest.files.size(),
                human_bytes(static_cast<Index>(result.bytes)).c_str(), result.manifest.digest.hex().c_str());
  }
  if (whole) return;
  std::string text = str("[", folder.string(), "] is damaged: ", result.problems.size(),
                         result.problems.size() == 1 ? " problem" : " problems");
  for (const std::string& problem : result.problems) text += "\n  " + problem;
  throw InputError(text);
}

void add_leaf(CLI::App& parent, const char* name, const char* help, void (*run)(const Options&)) {
  const auto options = std::make_shared<Options>();
  CLI::App* const leaf = parent.add_subcommand(name, help);
  leaf->add_option("folder", options->folder, "A step_* folder, or the folder of them: then the newest")->required();
  leaf->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  leaf->callback([options, run] { run(*options); });
}

}  // namespace

void add_checkpoint(CLI::App& program) {
  CLI::App* const command =
      program.add_subcommand("checkpoint", "Look into checkpoints, check, compare and rewrite them");
  command->require_subcommand(1);
  add_leaf(*command, "info", "Print what a checkpoint holds", info);
  add_leaf(*command, "verify", "Read every byte and compare it with the checksums and the state digest", verify);
  add_checkpoint_diff(*command);
  add_checkpoint_average(*command);
  add_checkpoint_prune(*command);
  add_checkpoint_reshard(*command);
  add_hugging_face(*command);
}

}  // namespace megalith::apps
