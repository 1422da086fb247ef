#include "apps/decoding_model.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/comm/gather_values.h"

#include "apps/checkpoint_folder.h"
#include "apps/command.h"
#include "apps/saved_model.h"

namespace megalith::apps {
namespace {

config::RunConfig::Parallel grid_of(const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (key != "parallel.tp" && key != "parallel.pp") {
      throw ConfigError(
          str("--set ", setting, ": must be parallel.tp=N or parallel.pp=N; all else comes from the checkpoint"));
    }
  }
  return config::parse_recipe("", "--set", settings).parallel;
}

/// The model alone is that of the checkpoint.
config::RunPlan plan_of(const config::RunConfig& trained, const DecodingOptions& options, int ranks) {
  const Device device = inference_device(options.device, trained.device.type == "cuda" ? Device::cuda : Device::cpu);
  config::RunConfig asked = model_of(trained);
  asked.source = "generate";
  asked.parallel = grid_of(options.settings);
  asked.data = trained.data;  // of which the tokenizer is used
  asked.train.steps = 1;
  asked.train.precision =
      options.precision.empty() ? std::string(config::default_precision(device)) : options.precision;
  if (device == Device::cuda && asked.train.precision == "fp64")
    throw ConfigError("--precision = fp64: is for --device cpu; a GPU computes in bf16 or fp32");
  asked.device.type = device == Device::cuda ? "cuda" : "cpu";
  return config::resolve(asked, ranks);
}

}  // namespace

void DecodingOptions::add_to(CLI::App& command) {
  command.add_option("--checkpoint", checkpoint, "Step folder, folder of steps, or OUT of a run")->required();
  command.add_option("--device", device, "cpu or cuda (default: as trained, where there is a GPU, else cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--precision", precision, "fp64, fp32 or bf16 (default: fp32 on the CPU, bf16 on a GPU)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  command.add_option("--ranks", ranks, "Ranks (default: tp * pp); more than tp * pp share out the texts")
      ->check(between(1, 65536));
  command.add_option("--set", settings, "The grid: parallel.tp=N or parallel.pp=N, whatever the training had")
      ->take_all()
      ->allow_extra_args(false);
}

DecodingModel::DecodingModel(io::Fs& fs, const DecodingOptions& options, const Launcher& launcher)
    : given_(options.checkpoint) {
  for (;;) {
    folder_ = checkpoint_folder(fs, given_, checkpoint::OnCorrupt::previous, unusable_);
    checkpoint::CheckpointReader reader(fs, folder_);
    const config::RunConfig trained = recipe_of(reader);
    if (options.ranks > 0) require_processes(launcher, "--ranks", options.ranks);
    plan_ = plan_of(trained, options, options.ranks > 0 ? options.ranks : launcher.processes);
    stored_ = config::resolve(trained).train.policy().master;
    try {
      plan_.data.vocab_dir = vocabulary_of(fs, reader, plan_.data);
      return;
    } catch (const InputError& error) {
      pass_over(fs, given_, folder_, error.what(), unusable_);
    }
  }
}

JobShape DecodingModel::job() const {
  JobShape job = shape_of(plan_);
  job.facts.emplace_back("--checkpoint", folder_.filename().string());
  return job;
}

void DecodingModel::load(comm::World& world, eval::Decoder& decoder) const {
  const std::shared_ptr<io::Fs> fs = rank_fs(world.rank());
  std::vector<checkpoint::Rejected> unusable = unusable_;
  for (io::Path folder = folder_;; folder = checkpoint_folder(*fs, given_, checkpoint::OnCorrupt::previous, unusable)) {
    std::string damage;
    try {
      checkpoint::CheckpointReader reader(*fs, folder);
      decoder.fill_params(stored_, [&](const TensorSlice& slice, const Tensor& values) { reader.read(slice, values); });
    } catch (const InputError& error) {
      damage = error.what();
    }
    bool all_well = true;
    const std::uint8_t is_well = damage.empty() ? 1 : 0;
    for (const std::uint8_t well : comm::gather_values(world.all(), is_well)) all_well = all_well && well != 0;
    if (all_well) return;
    if (damage.empty()) damage = str("[", folder.string(), "] is damaged where another rank reads it");
    pass_over(*fs, given_, folder, damage, unusable);
  }
}

}  // namespace megalith::apps
