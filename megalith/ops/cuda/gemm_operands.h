#pragma once
#include "megalith/ops/gemm_table.h"

namespace megalith::ops::cuda {

/// The dtype of a bias: that of the operands, or that of the result if the operands are in E4M3.
inline DType bias_dtype(const GemmProblem& problem) { return problem.in == DType::u8 ? problem.out : problem.in; }

/// The addresses of a GemmProblem's operands.
struct GemmOperands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  void* vector = nullptr;      ///< bias [n], or the gradient of a bias [n] f32, which is overwritten
  void* activation = nullptr;  ///< z [m, n] of bias_gelu (written) and gelu_backward (read)
  const void *a_scales = nullptr, *b_scales = nullptr;  ///< of operands in E4M3
};

}  // namespace megalith::ops::cuda
