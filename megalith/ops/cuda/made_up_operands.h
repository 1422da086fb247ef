#pragma once
#include <cstddef>
#include <span>

#include "megalith/ops/cuda/gemm_library.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops::cuda {

/// Operands of a product whose result nobody reads: normal numbers, as constants run faster than what a model computes
/// on. They lie in `scratch` where it is large enough, else in memory of their own.
class MadeUpOperands {
 public:
  /// Throws IoError when there is no memory.
  MadeUpOperands(const GemmProblem& problem, std::span<std::byte> scratch, Stream stream);
  const GemmOperands& get() const { return operands_; }

 private:
  Buffer own_;
  GemmOperands operands_;
};

}  // namespace megalith::ops::cuda
