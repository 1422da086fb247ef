#pragma once
#include "megalith/ops/muon.h"

namespace megalith::ops {

// Layouts as in muon.h; all tensors are contiguous. weight (N, C) : (C, 1), matrix (R, C) : (C, 1).

inline constexpr double kMuonNormEps = 1e-7;  ///< added to norms in divide_by_norms()

namespace cpu {
void muon_momentum(const MuonMomentum& args);
void muon_update(const MuonUpdate& args);
void take_runs(const Tensor& weight, const RowRuns& runs, const Tensor& matrix);
void put_runs(const PutRuns& args);
void add_up_rows(const Tensor& parts, const Tensor& totals);
void divide_by_norms(const Tensor& x, const Tensor& squares, const Tensor& out);
void linear_sum(const LinearSum& args);
}  // namespace cpu

namespace cuda {
// grad, m, masters, update, weight and the x of divide_by_norms(): f32.
void muon_momentum(Stream stream, const MuonMomentum& args);
void muon_update(Stream stream, const MuonUpdate& args);
void take_runs(Stream stream, const Tensor& weight, const RowRuns& runs, const Tensor& matrix);
void put_runs(Stream stream, const PutRuns& args);
void add_up_rows(Stream stream, const Tensor& parts, const Tensor& totals);
void divide_by_norms(Stream stream, const Tensor& x, const Tensor& squares, const Tensor& out);
void linear_sum(Stream stream, const LinearSum& args);
}  // namespace cuda

}  // namespace megalith::ops
