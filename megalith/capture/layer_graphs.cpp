#include "megalith/capture/layer_graphs.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::capture {
namespace {

using pipeline::Act;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Counts sets that are alive.
class LiveSets {
 public:
  explicit LiveSets(const char* what) : what_(what) {}
  void make(Index index) {
    if (!alive_.insert(index).second) throw InternalError(str("[capture] ", what_, " ", index, " is made twice"));
    peak_ = std::max(peak_, now());
  }
  void release(Index index) {
    if (alive_.erase(index) == 0)
      throw InternalError(str("[capture] ", what_, " ", index, " is released, but is not alive"));
  }
  int now() const { return static_cast<int>(alive_.size()); }
  int peak() const { return peak_; }

 private:
  const char* what_;
  std::set<Index> alive_;
  int peak_ = 0;
};

}  // namespace

int RankLayers::total() const { return std::accumulate(per_chunk.begin(), per_chunk.end(), 0); }

std::vector<int> pairs_per_layer(const RankLayers& layers, const pipeline::LoweredSchedule& lowered, GraphsPer per) {
  if (per == GraphsPer::microbatch) {
    const int captured = captured_microbatches(layers.shape);
    return std::vector<int>(layers.per_chunk.size(), captured);
  }
  std::vector<std::set<int>> slots(layers.per_chunk.size());
  for (const pipeline::LoweredAction& action : lowered.actions) {
    if (action.act == Act::forward) slots[at(action.chunk)].insert(action.slot);
  }
  std::vector<int> pairs;
  for (const std::set<int>& used : slots) pairs.push_back(static_cast<int>(used.size()));
  return pairs;
}

GraphCounts count_graphs(const RankLayers& layers, const pipeline::LoweredSchedule& lowered, GraphsPer per) {
  const std::vector<int> pairs = pairs_per_layer(layers, lowered, per);
  GraphCounts counts;
  for (std::size_t chunk = 0; chunk < pairs.size(); ++chunk)
    counts.graphs += Index{2} * layers.per_chunk[chunk] * pairs[chunk];
  counts.launches_per_step = Index{2} * layers.total() * layers.shape.num_microbatches;
  return counts;
}

int lazy_warmup_passes(Index warmup_steps, int num_microbatches, int captured_microbatches) {
  constexpr Index kRuns = 10;
  const Index missing = kRuns - warmup_steps * num_microbatches;
  return missing <= 0 ? 1 : static_cast<int>(ceil_div(missing, captured_microbatches));
}

Index flat_index(const RankLayers& layers, const LayerPass& pass) {
  const Index captured = captured_microbatches(layers.shape);
  const Index before = std::accumulate(layers.per_chunk.begin(), layers.per_chunk.begin() + pass.chunk, Index{0});
  return captured * before + Index{pass.microbatch} * layers.per_chunk[at(pass.chunk)] + pass.layer;
}

std::vector<CaptureStep> capture_steps(const RankLayers& layers) {
  pipeline::ScheduleShape captured = layers.shape;
  captured.num_microbatches = captured_microbatches(layers.shape);
  std::vector<CaptureStep> steps;
  std::optional<Index> sent;  // input gradient of the chunk backward before
  for (const pipeline::Action& action : schedule_of_order(captured, capture_order(layers.shape, layers.stage))) {
    const int count = layers.per_chunk[at(action.chunk)];
    std::optional<Index> above;  // input gradient of the layer above
    for (int i = 0; i < count; ++i) {
      const int layer = action.act == Act::forward ? i : count - 1 - i;
      CaptureStep step{{action.act, action.chunk, action.microbatch, layer}, 0, {}, {}};
      step.index = flat_index(layers, step.pass);
      if (action.act == Act::backward) {
        step.released_outputs.push_back(step.index);
        if (above) step.released_input_grads.push_back(*above);
        above = step.index;
        if (layer == 0) {
          if (sent) step.released_input_grads.push_back(*sent);
          sent = step.index;
        }
      }
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

Liveness peak_liveness(std::span<const CaptureStep> steps) {
  LiveSets outputs("output set"), input_grads("input gradient");
  for (const CaptureStep& step : steps) {
    (step.pass.act == Act::forward ? outputs : input_grads).make(step.index);
    for (const Index index : step.released_outputs) outputs.release(index);
    for (const Index index : step.released_input_grads) input_grads.release(index);
  }
  return {outputs.peak(), input_grads.peak(), input_grads.now()};
}

}  // namespace megalith::capture
