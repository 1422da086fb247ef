#pragma once
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::nn {

// The GEMMs of experts with E4M3 operands, in groups of rows: what nn/row_gemms.h is for one weight. Rows are rounded
// by vectors of 128 (ops/quantise.h), weights by squares. Groups begin at multiples of 128 rows.

/// Rows [M, K] of groups as the forward pass and the gradient of the input read them.
ops::Operand expert_rows(Exec& ex, const Tensor& rows, const ops::GroupRows& groups);
/// Turned, [K, M], as weight gradients read them.
ops::Operand turned_expert_rows(Exec& ex, const Tensor& rows, const ops::GroupRows& groups);
/// The activation [M, units] of z [M, 2 units] (SwiGLU) or [M, units] (GELU), whose 16-bit numbers are not written.
ops::Operand activated_expert_rows(Exec& ex, const Tensor& z, Index units, const ops::GroupRows& groups);

/// Whether rows are multiplied by W^T, or by W.
enum class WeightForm : std::uint8_t { straight, turned };

/// out_g = rows_g W_g^T, or rows_g W_g. Rounds the weights.
struct ExpertProduct {
  ops::Operand rows;  ///< [M, K], or [M, N] for `turned`
  Tensor weights;     ///< [G, N, K]
  WeightForm form = WeightForm::straight;
  Tensor out;  ///< [M, N], or [M, K] for `turned`
  ops::GroupRows groups;
};
void multiply_expert_rows(Exec& ex, const ExpertProduct& args);

/// args.dw_g += dy_g^T x_g, or =, of turned operands that are read in place of args.dy and args.x. Squares as of
/// ops::GroupedWeightGrad.
void add_expert_weight_grads(Exec& ex, const ops::Operand& dy_turned, const ops::Operand& x_turned,
                             const ops::GroupedWeightGrad& args);

}  // namespace megalith::nn
