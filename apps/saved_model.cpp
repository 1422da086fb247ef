#include "apps/saved_model.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint_folder.h"

namespace megalith::apps {
namespace {

/// Returns what is wrong with the checkpoint's files; use() was not called then.
std::string use_one(io::Fs& fs, const io::Path& folder,
                    const std::function<void(eval::WholeModel&, const config::RunPlan&)>& use) {
  checkpoint::CheckpointReader reader(fs, folder);
  const auto recipe = reader.manifest().run.texts.find("recipe");
  if (recipe == reader.manifest().run.texts.end())
    throw InputError(str(folder.string(), "/MANIFEST: texts.recipe is missing"));
  const config::RunPlan plan = config::resolve(config::parse_recipe(recipe->second, "checkpoint's recipe"));
  std::string damage;
  comm::run_ranks(1, [&](comm::World& world) {
    eval::WholeModel model(plan.model, grid::make_mesh(world, grid::resolve({})), plan.train.policy().master);
    try {
      for (const Param& param : model.params().params())
        reader.read(param.spec.slice, param.without_padding(param.master));
    } catch (const InputError& error) {
      damage = error.what();
      return;
    }
    use(model, plan);
  });
  return damage;
}

}  // namespace

void use_saved_model(io::Fs& fs, const io::Path& given,
                     const std::function<void(eval::WholeModel&, const config::RunPlan&)>& use) {
  std::vector<checkpoint::Rejected> unusable;
  for (;;) {
    const io::Path folder = checkpoint_folder(fs, given, checkpoint::OnCorrupt::previous, unusable);
    const std::string damage = use_one(fs, folder, use);
    if (damage.empty()) return;
    const auto step = io::parse_step_folder(folder.filename().string());
    if (!step || names_one_checkpoint(fs, given)) throw InputError(damage);
    unusable.push_back({*step, damage});
  }
}

}  // namespace megalith::apps
