#include "megalith/train/recompute_choices.h"

#include <vector>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/moe_rules.h"

namespace megalith::train {
namespace {

using nn::RecomputeModule;
using Modules = std::vector<RecomputeModule>;
constexpr auto kGelu = RecomputeModule::gelu, kDispatch = RecomputeModule::dispatch;

RecomputeChoice selective(std::initializer_list<Modules> parts) {
  RecomputeChoice choice{.name = {}, .config = {.mode = nn::RecomputeMode::selective}};
  for (const Modules& modules : parts) {
    for (const RecomputeModule module : modules) {
      choice.config.add(module);
      choice.name += str(choice.name.empty() ? "" : ", ", name(module));
    }
  }
  return choice;
}

/// `gelu` and `dispatch`: that module, or none.
std::vector<RecomputeChoice> make_choices(const Modules& gelu, const Modules& dispatch) {
  constexpr auto kNorms = RecomputeModule::norms, kAttention = RecomputeModule::attention;
  std::vector<RecomputeChoice> all = {{"none", {}}};
  if (!dispatch.empty()) all.push_back(selective({dispatch}));
  all.push_back(selective({gelu, {kNorms}, dispatch}));
  all.push_back(selective({gelu, {kNorms, kAttention}, dispatch}));
  all.push_back(selective({{kNorms, kAttention, RecomputeModule::mlp}, dispatch}));
  all.push_back({"full", {.mode = nn::RecomputeMode::full}});
  return all;
}

}  // namespace

std::span<const RecomputeChoice> recompute_choices(const config::RunPlan& plan) {
  static const std::vector<RecomputeChoice> all[] = {make_choices({}, {}), make_choices({kGelu}, {}),
                                                     make_choices({}, {kDispatch}), make_choices({kGelu}, {kDispatch})};
  return all[(plan.model.has_mlps() ? 1 : 0) + (config::exchanging_ranks(plan) > 1 ? 2 : 0)];
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
  for (const RecomputeChoice& choice : recompute_choices(plan)) {
    const Index less = total(bytes) - total(planned(with_recompute(plan, choice.config)));
    if (fits(less)) return str(", or ", choice.settings(), ", which takes ", human_bytes(less), " less");
  }
  return "";
}

}  // namespace megalith::train
