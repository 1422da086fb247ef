#include "apps/saved_model.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint_folder.h"
#include "apps/vocabulary.h"

namespace megalith::apps {
namespace {

/// Where a model computes, for GPUs in f32 whatever it was trained in: they give the log-probabilities of the CPU.
Device device_for(const config::RunPlan& plan, std::optional<Device> asked) {
  const bool trained_on_gpus = plan.device == Device::cuda && device::num_gpus() > 0;
  const Device device = asked.value_or(trained_on_gpus ? Device::cuda : Device::cpu);
  if (device == Device::cuda && plan.train.policy().master == DType::f64) {
    throw ConfigError(str("--device = cuda: the checkpoint's train.precision = ", plan.train.precision,
                          " is for the CPU; use --device cpu"));
  }
  require_device(device);
  return device;
}

/// Returns what is wrong with the checkpoint's files; use() was not called then.
std::string use_one(io::Fs& fs, const io::Path& folder, std::optional<Device> asked, const UseModel& use) {
  checkpoint::CheckpointReader reader(fs, folder);
  const auto recipe = reader.manifest().run.texts.find("recipe");
  if (recipe == reader.manifest().run.texts.end())
    throw InputError(str(folder.string(), "/MANIFEST: texts.recipe is missing"));
  config::RunPlan plan = config::resolve(config::parse_recipe(recipe->second, "checkpoint's recipe"));
  const Device device = device_for(plan, asked);
  std::string damage;
  try {
    plan.data.vocab_dir = vocabulary_of(fs, reader, plan.data);
  } catch (const InputError& error) {
    return error.what();
  }
  comm::run_ranks(1, [&](comm::World& world) {
    device::use(device, 0);
    eval::WholeModel model(plan.model, comm::make_mesh(world, grid::resolve({})), plan.train.policy().master, device);
    try {
      model.fill_params([&](const TensorSlice& slice, const Tensor& values) { reader.read(slice, values); });
    } catch (const InputError& error) {
      damage = error.what();
      return;
    }
    use(model, plan);
  });
  return damage;
}

}  // namespace

std::string vocabulary_of(io::Fs& fs, checkpoint::CheckpointReader& reader, const data::DataConfig& data) {
  if (reader.verify_plain_files()) return reader.folder().string();
  if (data.tokenizer != "gpt2" || data.vocab_dir.empty() || data::has_vocabulary(fs, data.vocab_dir))
    return data.vocab_dir;
  const auto& texts = reader.manifest().run.texts;
  const auto saved = texts.find("tokenizer_hash");
  const bool is_shipped =
      saved != texts.end() && saved->second == hex64(open_tokenizer(fs, "gpt2", "")->content_hash());
  return is_shipped ? std::string() : data.vocab_dir;
}

config::RunConfig model_of(const config::RunConfig& trained) {
  config::RunConfig c;
  c.model = trained.model;
  c.model.padded_vocab_size.reset();  // follows from tp
  c.moe = trained.moe;
  c.moe.capacity.reset();
  c.moe.capacity_factor.reset();
  c.moe.capacity_run.reset();
  c.moe.drop_by.reset();
  c.moe.replay.reset();
  c.moe.force_balance.reset();
  return c;
}

void pass_over(io::Fs& fs, const io::Path& given, const io::Path& folder, const std::string& damage,
               std::vector<checkpoint::Rejected>& unusable) {
  const auto step = io::parse_step_folder(folder.filename().string());
  if (!step || names_one_checkpoint(fs, given)) throw InputError(damage);
  unusable.push_back({*step, damage});
}

void use_saved_model(io::Fs& fs, const io::Path& given, std::optional<Device> asked, const UseModel& use) {
  std::vector<checkpoint::Rejected> unusable;
  for (;;) {
    const io::Path folder = checkpoint_folder(fs, given, checkpoint::OnCorrupt::previous, unusable);
    const std::string damage = use_one(fs, folder, asked, use);
    if (damage.empty()) return;
    pass_over(fs, given, folder, damage, unusable);
  }
}

void SavedModelOptions::add_to(CLI::App& command) {
  command.add_option("--checkpoint", checkpoint, "Step folder, folder of steps, or OUT of a run")->required();
  command
      .add_option("--device", device,
                  "cpu or cuda (default: as trained, where there is a GPU, else cpu); in f32 or f64")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

void SavedModelOptions::use(io::Fs& fs, const UseModel& use) const {
  std::optional<Device> asked;
  if (!device.empty()) asked = device == "cuda" ? Device::cuda : Device::cpu;
  use_saved_model(fs, checkpoint, asked, use);
}

}  // namespace megalith::apps
