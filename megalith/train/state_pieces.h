#pragma once
#include <deque>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/optim/optimizer.h"
#include "megalith/params/param_set.h"

namespace megalith::train {

/// A part of the training state: a box of a global tensor that is one stretch of this rank's memory.
struct StatePiece {
  TensorSlice slice;
  Tensor values;  ///< on the device, in the shape of slice.local
};

/// Names of a parameter's moments: these, then its own.
inline constexpr std::string_view kFirstMoment = "optimizer.m.", kSecondMoment = "optimizer.v.";

/// What of the state.
enum class StateTensors : std::uint8_t { values, values_and_moments };

/// The masters and moments of what this rank's optimizers update, and the values that rules update, without padding:
/// what a checkpoint is read into. Values of all ranks that hold the same parameters are then whole, once they are
/// gathered. `optimizers`: one for each of params.trained().
std::vector<StatePiece> updated_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                       StateTensors tensors);
/// Of those, what this rank owns: over all ranks of a run each element of the state comes once. Where an optimizer is
/// sharded, a rank's own shards; else all of it on the first model copy.
std::vector<StatePiece> owned_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                     const comm::Mesh& mesh);

}  // namespace megalith::train
