#pragma once
#include <functional>
#include <vector>

#include "megalith/grid/placement.h"
#include "megalith/tensor/init.h"
#include "megalith/tensor/row_runs.h"
#include "megalith/tensor/tensor.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith {

enum class Decay : std::uint8_t { no, yes };
/// How the first microbatch's gradient is written. `overwritten`: a GEMM overwrites it (beta = 0), so it is neither
/// cleared before a step nor read in it. `added`: it is added to zeros. Later microbatches add in both cases.
enum class FirstGrad : std::uint8_t { added, overwritten };
/// Whether steps update a parameter from its gradient. A parameter `by_rule` has no gradient and no moments: other code
/// writes it, with the same values on all ranks that hold it.
enum class Update : std::uint8_t { by_gradient, by_rule };

/// The layer of parameters that belong to none.
inline constexpr Index kOutsideLayers = -1;

/// A model's declaration of a parameter, before memory exists.
struct ParamSpec {
  TensorSlice slice;  ///< this rank's slice of the global tensor (without padding)
  Shape held;         ///< shape in memory; its first dimension may exceed that of slice.local by padding rows, which
                      ///< stay 0
  Init init = Init::zeros;
  double init_std = 0;
  Decay decay = Decay::yes;
  grid::Placement placement = grid::kSharded;
  FirstGrad first_grad = FirstGrad::added;
  Index grad_squares = 0;        ///< numbers with which the op that writes the gradient can give the sum of its squares
  Index layer = kOutsideLayers;  ///< number of its Transformer layer in the model
  Update update = Update::by_gradient;
  /// The matrices of a layer that it holds, for optimizers that treat a matrix as one: together all its rows in memory
  /// (all dimensions but the last are one); on the expert grid, of each [0] expert. Empty: it is no weight of a layer.
  std::vector<RowRuns> matrices = {};
};

/// Fills `values` with a slice of a parameter: host memory, as many elements, of a dtype that both sides know.
using ReadValues = std::function<void(const TensorSlice& slice, const Tensor& values)>;

}  // namespace megalith
