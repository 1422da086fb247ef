#include "megalith/grid/layer_assignment.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {
namespace {

/// The number of stages.
Index check_sizes(Index num_layers, int pp, int chunks) {
  require_size("num_layers", num_layers);
  require_size("pp", pp);
  require_size("vpp", chunks);
  return Index{pp} * chunks;
}

}  // namespace

LayerAssignment::LayerAssignment(int pp, std::span<const Index> stage_layers) : pp_(pp) {
  Index begin = 0;
  for (const Index layers : stage_layers) {
    stages_.push_back({begin, begin + layers});
    begin += layers;
  }
}

LayerAssignment LayerAssignment::even(Index num_layers, int pp, int chunks) {
  const Index stages = check_sizes(num_layers, pp, chunks);
  if (num_layers % stages != 0) {
    throw ConfigError(str("E_LAYERS_NOT_DIVISIBLE: num_layers (", num_layers, ") is not divisible by ", stages, " (pp ",
                          pp, " * vpp ", chunks, "); stage_layers can give every stage its own number"));
  }
  const std::vector<Index> stage_layers(static_cast<std::size_t>(stages), num_layers / stages);
  return {pp, stage_layers};
}

LayerAssignment LayerAssignment::uneven(Index num_layers, int pp, int chunks, std::span<const Index> stage_layers) {
  const Index stages = check_sizes(num_layers, pp, chunks);
  if (static_cast<Index>(stage_layers.size()) != stages) {
    throw ConfigError(str("stage_layers = ", stage_layers.size(), " numbers: must be ", stages,
                          ", one for each stage (pp ", pp, " * vpp ", chunks, ")"));
  }
  Index left = num_layers;
  for (std::size_t s = 0; s < stage_layers.size(); ++s) {
    const Index layers = stage_layers[s];
    if (layers < 0) throw ConfigError(str("stage_layers[", s, "] = ", layers, ": must be at least 0"));
    if (layers > left) {
      throw ConfigError(str("stage_layers[", s, "] = ", layers,
                            ": the stages up to this one hold more than num_layers = ", num_layers, " layers"));
    }
    left -= layers;
  }
  if (left != 0) {
    throw ConfigError(str("stage_layers = ", num_layers - left, " layers in all: must be num_layers = ", num_layers));
  }
  return {pp, stage_layers};
}

LayerRange LayerAssignment::at(int pp_rank, int chunk) const {
  require_below("pp rank", pp_rank, pp_);
  require_below("chunk", chunk, chunks());
  return stages_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(pp_) + static_cast<std::size_t>(pp_rank)];
}

}  // namespace megalith::grid
