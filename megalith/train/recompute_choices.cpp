#include "megalith/train/recompute_choices.h"

#include <vector>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

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

std::string recompute_that_fits(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned,
                                const std::function<bool(Index less)>& fits) {
  for (const RecomputeChoice& choice : recompute_choices()) {
    const Index less = total(bytes) - total(planned(with_recompute(plan, choice.config)));
    if (fits(less)) return str(", or ", choice.settings(), ", which takes ", human_bytes(less), " less");
  }
  return "";
}

}  // namespace megalith::train
