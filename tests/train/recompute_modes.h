#pragma once
#include <initializer_list>
#include <vector>

#include "megalith/nn/recompute_config.h"

namespace megalith::support {

struct RecomputeWay {
  const char* name;
  nn::RecomputeConfig config;
};

inline nn::RecomputeConfig full(nn::RecomputeMethod method, Index layers) {
  return {.mode = nn::RecomputeMode::full, .method = method, .layers = layers};
}

inline nn::RecomputeConfig selective(std::initializer_list<nn::RecomputeModule> modules) {
  nn::RecomputeConfig config{.mode = nn::RecomputeMode::selective};
  for (const nn::RecomputeModule module : modules) config.add(module);
  return config;
}

inline const std::vector<RecomputeWay>& recompute_ways() {
  static const std::vector<RecomputeWay> all = {
      {"full", full(nn::RecomputeMethod::uniform, 1)},
      {"full, groups of 3", full(nn::RecomputeMethod::uniform, 3)},
      {"full, the first layer", full(nn::RecomputeMethod::block, 1)},
      {"norms", selective({nn::RecomputeModule::norms})},
      {"attention", selective({nn::RecomputeModule::attention})},
      {"mlp", selective({nn::RecomputeModule::mlp})},
      {"gelu", selective({nn::RecomputeModule::gelu})},
      {"norms, attention, mlp",
       selective({nn::RecomputeModule::norms, nn::RecomputeModule::attention, nn::RecomputeModule::mlp})}};
  return all;
}

}  // namespace megalith::support
