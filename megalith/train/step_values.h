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
  const std::optional<ValueDifference>& unequal_replicas() const { return unequal_replicas_; }
  void clear();

 private:
  void put_piece(const StatePiece& piece);

  std::mutex mutex_;
  std::map<std::string, Whole> tensors_;
  std::optional<ValueDifference> unequal_replicas_;
};

/// All that differs beyond the bands after a step, the loss first, then norm, gradients, and the state; adds the
/// largest differences of all kinds to result.largest.
std::vector<ValueDifference> compare_values(const StepValues& a, const StepValues& b, Index step,
                                            const VerifyBands& bands, std::map<std::string, double>& largest);

}  // namespace megalith::train
