#include "megalith/train/recompute_choices.h"

#include <vector>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::train {

std::span<const RecomputeChoice> recompute_choices(const model::ModelConfig& model) {
  using nn::RecomputeMode;
  using nn::RecomputeModule;
  const auto selective = [](std::initializer_list<RecomputeModule> modules) {
    RecomputeChoice choice{.name = {}, .config = {.mode = RecomputeMode::selective}};
    for (const RecomputeModule module : modules) {
      choice.config.add(module);
      choice.name += str(choice.name.empty() ? "" : ", ", name(module));
    }
    return choice;
  };
  constexpr auto kNorms = RecomputeModule::norms, kGelu = RecomputeModule::gelu,
                 kAttention = RecomputeModule::attention;
  const auto between = [&](const RecomputeChoice& first, const RecomputeChoice& second) {
    return std::vector<RecomputeChoice>{{"none", {}},
                                        first,
                                        second,
                                        selective({kNorms, kAttention, RecomputeModule::mlp}),
                                        {"full", {.mode = RecomputeMode::full}}};
  };
  static const std::vector<RecomputeChoice> with_mlps =
      between(selective({kGelu, kNorms}), selective({kGelu, kNorms, kAttention}));
  static const std::vector<RecomputeChoice> without_mlps =
      between(selective({kNorms}), selective({kNorms, kAttention}));
  return model.has_mlps() ? with_mlps : without_mlps;
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
  for (const RecomputeChoice& choice : recompute_choices(plan.model)) {
    const Index less = total(bytes) - total(planned(with_recompute(plan, choice.config)));
    if (fits(less)) return str(", or ", choice.settings(), ", which takes ", human_bytes(less), " less");
  }
  return "";
}

}  // namespace megalith::train
