#pragma once
#include "megalith/grid/placement.h"
#include "megalith/tensor/init.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith {

enum class Decay : std::uint8_t { no, yes };
/// How the first microbatch's gradient arrives: a product may overwrite it (beta = 0), so that nothing need be cleared
/// before a step nor read in it; others add to zeros. Later microbatches add in either case.
enum class FirstGrad : std::uint8_t { added, overwritten };
/// Whether steps update a parameter from its gradient. One `by_rule` has no gradient and no moments: something else
/// writes it, alike on all ranks that hold it.
enum class Update : std::uint8_t { by_gradient, by_rule };

/// The layer of parameters that belong to none.
inline constexpr Index kOutsideLayers = -1;

/// What a model says about a parameter before memory exists.
struct ParamSpec {
  TensorSlice slice;  ///< what of the global tensor (without padding) this rank holds
  Shape held;         ///< shape in memory; its first dimension may exceed slice.local's by padding rows, which stay 0
  Init init = Init::zeros;
  double init_std = 0;
  Decay decay = Decay::yes;
  grid::Placement placement = grid::kSharded;
  FirstGrad first_grad = FirstGrad::added;
  Index layer = kOutsideLayers;  ///< global number of its Transformer layer
  Update update = Update::by_gradient;
};

}  // namespace megalith
