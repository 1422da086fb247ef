#pragma once
#include "megalith/runtime/exec.h"
#include "megalith/tensor/master_values.h"
#include "megalith/tensor/row_runs.h"

namespace megalith::ops {

// The parts of a Muon step that are no GEMM (optim/muon.h has the order). Source: Jordan et al. 2024,
// https://kellerjordan.github.io/posts/muon.

/// Momentum in Nesterov's form, over flat buffers of N elements:
///   g = grad * factor; m = momentum m + g; grad = g + momentum m
/// Nothing changes when verdict.apply is 0. Moves 16 bytes per element in f32.
struct MuonMomentum {
  Tensor grad, m;  // in, out  [N] f32 or f64
  Tensor verdict;  // in       u8 [sizeof(StepVerdict)]
  double momentum = 0.95;
};
void muon_momentum(Exec& ex, const MuonMomentum& args);

/// w -= learning_rate (update + decay w), over flat buffers of N elements. decay is weight_decay where decays[i /
/// kDecayGroup] is 1, else 0. w are the masters; their copy, if there is one, becomes w rounded to its dtype. Both
/// forms of masters give the same bits. Nothing changes when verdict.apply is 0. Moves 12 bytes per element in f32,
/// with whole or split masters; a copy in f16 takes 2 more.
struct MuonUpdate {
  MasterValues masters;  // in, out  of N parameters, f32 or f64
  Tensor update;         // in       [N]
  Tensor decays;         // in       [N / kDecayGroup, rounded up] u8
  Tensor verdict;        // in       u8 [sizeof(StepVerdict)]
  double weight_decay = 0;
};
void muon_update(Exec& ex, const MuonUpdate& args);

/// matrix [R, C] = the rows of a weight [N, C] that belong to it. R = N / stride * run. Both f32 or both f64.
void take_runs(Exec& ex, const Tensor& weight, const RowRuns& runs, const Tensor& matrix);
/// The rows of `weight` that belong to the matrix = scale * matrix. weight is f32 or f64, matrix of any float type.
struct PutRuns {
  Tensor matrix;  // in   [R, C]
  Tensor weight;  // out  [N, C], other rows stay
  RowRuns runs;
  double scale = 1;
};
void put_runs(Exec& ex, const PutRuns& args);

/// totals [S] = the sums of the rows of parts [S, B], in a fixed order. f64.
void add_up_rows(Exec& ex, const Tensor& parts, const Tensor& totals);
/// out[s] = x[s] / (sqrt(squares[s]) + 1e-7). x, out [S, N], squares [S]; x f32 or f64, squares f64, out of any float
/// type.
void divide_by_norms(Exec& ex, const Tensor& x, const Tensor& squares, const Tensor& out);
/// out = a x + b y, for equal shapes and dtypes. out may be x or y.
struct LinearSum {
  double a = 1;
  Tensor x;  // in
  double b = 1;
  Tensor y;    // in
  Tensor out;  // out
};
void linear_sum(Exec& ex, const LinearSum& args);

}  // namespace megalith::ops
