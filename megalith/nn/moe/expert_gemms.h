#pragma once
#include "megalith/nn/row_gemms.h"
#include "megalith/ops/grouped_matmul.h"

namespace megalith::nn {

// The GEMMs of experts with E4M3 operands, in groups of rows: what nn/row_gemms.h is for one weight. Rows are rounded
// by vectors of 128 (ops/quantise.h), weights by squares. Groups begin at multiples of 128 rows.

/// The operands of rows [M, K] of groups, by one pass. `turned`: also for the weight gradient, where that has FP8
/// operands.
RowOperands expert_rows(Exec& ex, const GemmFormats& formats, const Tensor& rows, const ops::GroupRows& groups,
                        bool turned);
/// Those of the weight gradient alone, [K, M].
ops::Operand turned_expert_rows(Exec& ex, const Tensor& rows, const ops::GroupRows& groups);
/// The activation [M, units] of z [M, 2 units] (SwiGLU) or [M, units] (GELU), whose 16-bit numbers are not written.
ops::Operand activated_expert_rows(Exec& ex, const Tensor& z, Index units, const ops::GroupRows& groups);

/// out_g = rows_g W_g^T, or with `turned` rows_g W_g. Rounds the weights.
struct ExpertProduct {
  ops::Operand rows;  ///< [M, K], or [M, N] for `turned`
  Tensor weights;     ///< [G, N, K]
  bool turned = false;
  Tensor out;  ///< [M, N], or [M, K] for `turned`
  ops::GroupRows groups;
};
void multiply_expert_rows(Exec& ex, const ExpertProduct& args);

/// args.dw_g += dy_g^T x_g, or =, of turned operands that are read in place of args.dy and args.x. Squares as of
/// ops::GroupedWeightGrad.
void add_expert_weight_grads(Exec& ex, const ops::Operand& dy_turned, const ops::Operand& x_turned,
                             const ops::GroupedWeightGrad& args);

}  // namespace megalith::nn
