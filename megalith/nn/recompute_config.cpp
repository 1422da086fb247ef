#include "megalith/nn/recompute_config.h"

#include <algorithm>
#include <array>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::nn {
namespace {

// As the enumerators count.
constexpr std::array<std::string_view, kNumRecomputeModules> kModules = {"gelu", "norms", "attention", "mlp",
                                                                         "dispatch"};

}  // namespace

std::string_view name(RecomputeMode mode) { return kRecomputeModeNames[static_cast<std::size_t>(mode)]; }
std::string_view name(RecomputeMethod method) { return kRecomputeMethodNames[static_cast<std::size_t>(method)]; }
std::string_view name(RecomputeModule module) { return kModules[static_cast<std::size_t>(module)]; }

std::vector<std::string> RecomputeConfig::modules() const {
  std::vector<std::string> all;
  for (int i = 0; i < kNumRecomputeModules; ++i) {
    const auto module = static_cast<RecomputeModule>(i);
    if (names(module)) all.emplace_back(name(module));
  }
  return all;
}

bool read_modules(std::span<const std::string> names, RecomputeConfig& config, Problems& out) {
  bool all_known = true;
  for (const std::string& asked : names) {
    if (const auto module = enumerator_of<RecomputeModule>(kModules, asked)) {
      config.add(*module);
      continue;
    }
    all_known = false;
    const std::string_view near = nearest(asked, kModules);
    out.add("recompute.modules", bracketed(names),
            str("no module is called ", asked, near.empty() ? "" : str("; did you mean ", near, "?"),
                "; there are gelu, norms, attention, mlp, dispatch"));
  }
  return all_known;
}

void check(const RecomputeConfig& config, Index max_layers, Problems& out) {
  const std::vector<std::string> modules = config.modules();
  if (config.mode == RecomputeMode::selective) {
    out.require(!modules.empty(), "recompute.modules", "[]",
                "must name what selective recomputes: gelu, norms, attention, mlp, dispatch");
  } else {
    out.require(modules.empty(), "recompute.modules", bracketed(modules),
                str("goes with recompute.mode = selective, which is ", name(config.mode)));
  }
  out.require(config.layers <= max_layers, "recompute.layers", config.layers,
              str("must be at most ", max_layers, ", the layers of the largest chunk"));
}

}  // namespace megalith::nn
