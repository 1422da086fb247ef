#include "apps/checkpoint/saved_model.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

/// Returns the damage of the checkpoint's files. Then use() was not called, or has thrown.
std::string use_one(io::Fs& fs, const io::Path& folder, const UseModel& use) {
  checkpoint::CheckpointReader reader(fs, folder);
  config::RunPlan plan = config::resolve(recipe_of(reader));
  std::string damage;
  try {
    plan.data.vocab_dir = vocabulary_of(fs, reader, plan.data);
  } catch (const InputError& error) {
    return error.what();
  }
  try {
    use(plan, [&](const TensorSlice& slice, const Tensor& values) {
      try {
        reader.read(slice, values);
      } catch (const InputError& error) {
        damage = error.what();
        throw;
      }
    });
  } catch (const InputError&) {
    if (damage.empty()) throw;
  }
  return damage;
}

}  // namespace

std::string vocabulary_of(io::Fs& fs, checkpoint::CheckpointReader& reader, const data::DataConfig& data) {
  if (reader.verify_plain_files()) return reader.folder().string();
  if (data.tokenizer != "gpt2" || data.vocab_dir.empty() || tokenizer::has_vocabulary(fs, data.vocab_dir))
    return data.vocab_dir;
  const auto& texts = reader.manifest().run.texts;
  const auto saved = texts.find("tokenizer_hash");
  const bool is_shipped =
      saved != texts.end() && saved->second == hex64(open_tokenizer(fs, "gpt2", "")->content_hash());
  return is_shipped ? std::string() : data.vocab_dir;
}

config::RunConfig recipe_of(const checkpoint::CheckpointReader& reader) {
  const auto recipe = reader.manifest().run.texts.find("recipe");
  if (recipe == reader.manifest().run.texts.end())
    throw InputError(str(reader.folder().string(), "/MANIFEST: texts.recipe is missing"));
  return config::parse_recipe(recipe->second, "checkpoint's recipe");
}

Device inference_device(const std::string& asked, Device usual) {
  if (!asked.empty()) return asked == "cuda" ? Device::cuda : Device::cpu;
  return usual == Device::cuda && device::num_gpus() > 0 ? Device::cuda : Device::cpu;
}

config::RunConfig model_of(const config::RunConfig& trained) {
  config::RunConfig c;
  c.model = trained.model;
  c.model.padded_vocab_size.reset();  // follows from tp
  c.bert = trained.bert;
  c.task = trained.task;
  c.task.init.reset();
  c.moe = trained.moe;
  c.moe.capacity.reset();
  c.moe.capacity_factor.reset();
  c.moe.capacity_run.reset();
  c.moe.drop_by.reset();
  c.moe.replay.reset();
  c.moe.force_balance.reset();
  c.moe.rank_capacity_factor.reset();  // inference has room for all rows
  c.moe.overflow.reset();
  c.moe.echo = {};
  return c;
}

void pass_over(io::Fs& fs, const io::Path& given, const io::Path& folder, const std::string& damage,
               std::vector<checkpoint::Rejected>& unusable) {
  const auto step = io::parse_step_folder(folder.filename().string());
  if (!step || names_one_checkpoint(fs, given)) throw InputError(damage);
  unusable.push_back({*step, damage});
}

void use_saved_model(io::Fs& fs, const io::Path& given, const UseModel& use) {
  std::vector<checkpoint::Rejected> unusable;
  for (;;) {
    const io::Path folder = checkpoint_folder(fs, given, checkpoint::OnCorrupt::previous, unusable);
    const std::string damage = use_one(fs, folder, use);
    if (damage.empty()) return;
    pass_over(fs, given, folder, damage, unusable);
  }
}

}  // namespace megalith::apps
