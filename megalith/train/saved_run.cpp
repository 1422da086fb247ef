#include "megalith/train/saved_run.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/model_changes.h"

namespace megalith::train {
namespace {

/// `others`: further lines on what does not fit.
std::vector<std::string> require_model(const config::RunPlan& plan, const config::RunPlan& then,
                                       const std::string& others, const io::Path& folder) {
  const config::ModelChanges changes = config::model_changes(then, plan);
  std::string lines;
  for (const std::string& line : changes.refused) lines += "\n  " + line;
  lines += others;
  if (lines.empty()) return changes.taken;
  throw CheckpointError(CheckpointError::Kind::refused,
                        str("[", plan.init_key(), "] ", folder.string(), " does not fit the recipe:", lines));
}

}  // namespace

config::RunConfig saved_recipe(const checkpoint::RunState& saved, std::string_view where) {
  const auto recipe = saved.texts.find(kRecipeText);
  if (recipe == saved.texts.end()) throw InputError(str(where, " MANIFEST: texts.recipe is missing"));
  try {
    return config::parse_recipe(recipe->second, "checkpoint's recipe");
  } catch (const ConfigError& error) {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str(where, " the checkpoint was written by another version of megalith: ", error.what()));
  }
}

config::RunPlan saved_plan(const checkpoint::RunState& saved, std::string_view where) {
  const config::RunConfig recipe = saved_recipe(saved, where);
  try {
    return config::resolve(recipe);
  } catch (const ConfigError& error) {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str(where, " the checkpoint's recipe breaks rules of this version: ", error.what()));
  }
}

std::string saved_hash(const checkpoint::RunState& saved, const char* name) {
  const auto found = saved.texts.find(name);
  return found == saved.texts.end() ? std::string() : found->second;
}

bool is_saved_hash(const checkpoint::RunState& saved, const char* name, std::uint64_t hash) {
  return saved_hash(saved, name) == hex64(hash) || saved_hash(saved, name) == hex64(0);
}

std::vector<std::string> require_fit(const config::RunPlan& plan, const DataIdentity& identity,
                                     const checkpoint::RunState& saved, const io::Path& folder) {
  const config::RunPlan then = saved_plan(saved, str("[", plan.init_key(), "]"));
  std::string others;
  if (then.train.policy().master != plan.train.policy().master)
    others +=
        str("\n  train.precision = ", plan.train.precision, ": the checkpoint's values are of ", then.train.precision);
  if (!is_saved_hash(saved, kTokenizerHash, identity.tokenizer))
    others += "\n  data.tokenizer: its vocabulary differs from the checkpoint's";
  return require_model(plan, then, others, folder);
}

std::vector<std::string> require_fit(const config::RunPlan& plan, const convert::HfModel& hf, const io::Path& folder) {
  config::RunPlan then;
  then.model = hf.config;
  return require_model(plan, then, {}, folder);
}

void require_init_fits(io::Fs& fs, const config::RunPlan& plan, const DataIdentity& identity, const io::Path& init) {
  if (init.empty()) return;
  if (convert::is_hf_folder(fs, init))
    require_fit(plan, convert::read_hf_config(fs, init), init);
  else
    require_fit(plan, identity, checkpoint::CheckpointReader(fs, init).manifest().run, init);
}

}  // namespace megalith::train
