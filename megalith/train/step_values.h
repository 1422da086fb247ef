#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megalith/train/grid_verify.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {

/// Loss, norm, gradients and state of one grid after a step, in f64, put together from all ranks. put() is thread-safe.
class StepValues {
 public:
  struct Whole {
    Shape shape;
    std::vector<double> values;
    std::vector<std::uint8_t> is_there;  ///< by element
  };
  /// Waits for nothing: on the CPU. Replicas of an element must have equal bits; the first that has not is kept.
  void put(Engine& engine);
  /// The loss of a step that ended with NonFiniteError is NaN.
  double loss = 0, grad_norm = 0;

  const std::map<std::string, Whole>& tensors() const { return tensors_; }
  /// Null if there is none of this name.
  const Whole* find(const std::string& name) const;
  const std::optional<ValueDifference>& unequal_replicas() const { return unequal_replicas_; }
  void clear();

 private:
  void put_piece(const StatePiece& piece);

  std::mutex mutex_;
  std::map<std::string, Whole> tensors_;
  std::optional<ValueDifference> unequal_replicas_;
};

/// The values of both grids after a step; `wide`, unless it is null, of the first grid in a wider precision.
struct ComparedValues {
  const StepValues &a, &b;
  const StepValues* wide = nullptr;
};
/// All that differs beyond the bands after a step, the loss first, then norm, gradients, and the state; adds the
/// largest differences of all kinds to `largest`. With `wide` a band is at least kOfRounding times the distance of `a`
/// from it.
std::vector<ValueDifference> compare_values(const ComparedValues& values, Index step, const VerifyBands& bands,
                                            std::map<std::string, double>& largest);
/// The largest difference, relative to the largest magnitude of `a`. Both must have one shape.
double distance_between(const StepValues::Whole& a, const StepValues::Whole& b);

/// A tensor before and after a step.
struct ValueChange {
  const StepValues::Whole &before, &after;
};
/// `band`: the distance of elements that differ, relative to the largest magnitude on the first grid.
ChangeRatio ratio_of_changes(const ValueChange& a, const ValueChange& b, double band);

}  // namespace megalith::train
