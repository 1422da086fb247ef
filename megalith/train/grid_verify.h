#pragma once
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/train/op_compare.h"
#include "megalith/train/run_data.h"
#include "megalith/train/run_identity.h"
#include "megalith/train/verify_sums.h"

namespace megalith::train {

/// How far two grids may be apart, relative to the largest magnitude of a tensor (docs/verify.md). 0: not compared.
struct VerifyBands {
  double first_loss = 0, first_norm = 0, first_gradients = 0;  ///< of step 1
  double losses = 0, norms = 0, gradients = 0;                 ///< of later steps
  double first_moments = 0, state = 0;    ///< moments after step 1; all of the state after any step
  double results = 0, later_results = 0;  ///< of single ops, of step 1 and of later ones
};
/// The bands of one recipe on two grids. In 16 bits they are wider where tp or etp differs, and so the sums over it.
/// Moments in bf16 are compared in fp64 only: elsewhere a difference of sums, however small, moves some over a border
/// of the stochastic rounding.
VerifyBands verify_bands(const config::RunPlan& a, const config::RunPlan& b);

/// A number or a tensor that differs beyond its band.
struct ValueDifference {
  std::string name;  ///< "loss", "gradient norm", or a tensor: "gradient of X", "X", "optimizer.m.X"
  Shape shape;       ///< empty for a number
  std::array<Index, Shape::kMaxRank> at{};
  double a = 0, b = 0;
  double largest = 0, band = 0;  ///< |a - b| over the largest magnitude on the first grid
  /// Its ranks hold different replicas: of grid 0 or 1, and then a and b are two ranks' values of it; -1: it is none of
  /// these.
  int replicas_of = -1;
};

/// The elements of a tensor of the state that differ: the second grid's step changed them by `times` what the first
/// one's did; 0: by no such number.
struct ChangeRatio {
  Index elements = 0;
  double times = 0;
};

/// What was found in the steps that were compared.
struct VerifyResult {
  Index steps = 0;                             ///< that were compared
  std::vector<double> losses = {};             ///< of the first grid, by step
  std::map<std::string, double> largest = {};  ///< by kind (loss, gradient norm, gradients, state): seen in any step
  std::vector<ValueDifference> different =
      {};                                ///< of the first step that differs, which is `steps`; empty: the grids agree
  std::optional<OpComparison> ops = {};  ///< the results of that step's passes
  /// By grid, of the first tensor that differs: the ops that wrote to it last and, of a gradient, the sum that it is.
  std::array<std::vector<std::string>, 2> last_writers = {};
  std::array<std::optional<GradientSum>, 2> sums = {};
  /// If that tensor is of the state.
  std::optional<ChangeRatio> changes = {};

  /// The parameters that the first op reads, if they differed before the step, and their distances.
  std::vector<std::pair<std::string, double>> parameters = {};

  /// The first tensor that differs; null if only numbers do.
  const ValueDifference* first_tensor() const;

  bool agree() const { return different.empty(); }
};

struct VerifyInputs {
  std::array<const config::RunPlan*, 2> plans;  ///< one recipe on two grids, on the CPU, without graphs
  const RunData& data;
  DataIdentity identity;
  io::Fs& fs;
  io::Path init = {};  ///< the step folder of train.init; empty: none
  Index steps = 1;
  std::function<void(Index step)> progress = [](Index) {};  ///< after each step, on one thread
  /// Compares the ops of this step also if all else agrees; 0: none.
  Index ops_of_step = 0;
};

/// Trains both plans at the same time, as rank threads of this process, and compares loss, norm, gradients and state
/// after each step. In the first step that differs it compares the results of all ops: both grids then train again up
/// to that step. With experts in less than fp64, where rounding may turn a choice of a router, the second grid repeats
/// the choices of the first, one step behind it. Where two grids that round sums differently in 16 bits are apart by
/// more than a band, all is done again with a third run, of the first grid in fp32: see kOfRounding. Memory: these
/// runs, for each its state and gradients in f64, and then the results of all ops of a step in f64. Throws the first
/// error of a rank, but for a loss that is not finite on one grid alone.
VerifyResult verify_grids(const VerifyInputs& inputs);

}  // namespace megalith::train
