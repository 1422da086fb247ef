#pragma once
#include <deque>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/optim/optimizer.h"
#include "megalith/params/param_set.h"

namespace megalith::train {

/// A part of the training state: a box of a global tensor that is contiguous in this rank's memory.
struct StatePiece {
  TensorSlice slice;
  /// On the device, flat: masters in either form, without a copy that follows from them; of any other tensor `whole`.
  MasterValues values;
};

/// Names of a parameter's moments: one of these prefixes, then the parameter's name.
inline constexpr std::string_view kFirstMoment = "optimizer.m.", kSecondMoment = "optimizer.v.";

/// The same for a gradient, which is no part of the state: its prefix.
inline constexpr std::string_view kGradientOf = "gradient of ";

/// The parts of the state; or the gradients of the elements that a rank updates, after the sums over ranks.
enum class StateTensors : std::uint8_t { values, values_and_moments, gradients };

/// The masters and moments of the elements that this rank's optimizers update, and the values that rules update,
/// without padding: the targets for reading a checkpoint. The values of all ranks that hold the same parameters are
/// complete when they are gathered. `optimizers`: one for each of params.trained().
std::vector<StatePiece> updated_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                       StateTensors tensors);
/// The part of these that this rank owns: over all ranks of a run each element of the state occurs once. If an
/// optimizer is sharded, a rank owns its shards. Otherwise the first model copy owns everything.
std::vector<StatePiece> owned_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                     const comm::Mesh& mesh);

}  // namespace megalith::train
