#pragma once
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::grid {

/// Layers [begin, end) of one model chunk: global numbers from 0. Empty when begin == end.
struct LayerRange {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

/// Which layers every chunk of every pipeline rank holds. Chunk k of rank i is stage k*pp + i of the whole model, and
/// the stages hold consecutive layers.
class LayerAssignment {
 public:
  /// num_layers / (pp chunks) layers each. Throws ConfigError: E_SIZE_NOT_POSITIVE, E_LAYERS_NOT_DIVISIBLE.
  static LayerAssignment even(Index num_layers, int pp, int chunks);
  /// Entry s of `stage_layers` (pp*chunks numbers >= 0 that sum to num_layers) is the number of layers of stage s.
  /// Throws ConfigError: E_SIZE_NOT_POSITIVE, or naming stage_layers and the rule.
  static LayerAssignment uneven(Index num_layers, int pp, int chunks, std::span<const Index> stage_layers);
  /// uneven(), or even() if `stage_layers` is empty, as the key parallel.stage_layers has it.
  static LayerAssignment of(Index num_layers, int pp, int chunks, std::span<const Index> stage_layers) {
    return stage_layers.empty() ? even(num_layers, pp, chunks) : uneven(num_layers, pp, chunks, stage_layers);
  }

  int pp() const { return pp_; }
  int chunks() const { return static_cast<int>(stages_.size()) / pp_; }
  /// Throws ConfigError unless pp_rank is in [0, pp()) and chunk in [0, chunks()).
  LayerRange at(int pp_rank, int chunk) const;
  /// By stage number.
  const std::vector<LayerRange>& stages() const { return stages_; }

 private:
  LayerAssignment(int pp, std::span<const Index> stage_layers);

  int pp_;
  std::vector<LayerRange> stages_;
};

}  // namespace megalith::grid
