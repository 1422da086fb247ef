#include "megalith/train/recompute_choices.h"

#include <memory>
#include <vector>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/train/engine.h"

namespace megalith::train {

std::span<const RecomputeChoice> recompute_choices() {
  using nn::RecomputeMode;
  using nn::RecomputeModule;
  const auto selective = [](std::initializer_list<RecomputeModule> modules) {
    nn::RecomputeConfig config{.mode = RecomputeMode::selective};
    for (const RecomputeModule module : modules) config.add(module);
    return config;
  };
  static const std::vector<RecomputeChoice> all = {
      {"none", {}},
      {"gelu, norms", selective({RecomputeModule::gelu, RecomputeModule::norms})},
      {"gelu, norms, attention",
       selective({RecomputeModule::gelu, RecomputeModule::norms, RecomputeModule::attention})},
      {"norms, attention, mlp", selective({RecomputeModule::norms, RecomputeModule::attention, RecomputeModule::mlp})},
      {"full", {.mode = RecomputeMode::full}}};
  return all;
}

std::string RecomputeChoice::settings() const {
  const std::vector<std::string> modules = config.modules();
  return str("recompute.mode = ", nn::name(config.mode),
             modules.empty() ? "" : ", recompute.modules = " + bracketed(modules));
}

config::RunPlan with_recompute(config::RunPlan plan, const nn::RecomputeConfig& recompute) {
  plan.recompute = recompute;
  return plan;
}

BytesByOwner planned_bytes(const config::RunPlan& plan, int rank) {
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  return Engine(*world, plan).planned_bytes();
}

std::string recompute_that_fits(const config::RunPlan& plan, int rank, const std::function<bool(Index less)>& fits) {
  const Index now = total(planned_bytes(plan, rank));
  for (const RecomputeChoice& choice : recompute_choices()) {
    const Index less = now - total(planned_bytes(with_recompute(plan, choice.config), rank));
    if (fits(less)) return str(", or ", choice.settings(), ", which takes ", human_bytes(less), " less");
  }
  return "";
}

}  // namespace megalith::train
