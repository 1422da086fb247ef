#pragma once
#include <cstddef>
#include <span>

#include "megalith/ops/cuda/gemm_library.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops::cuda {

/// Operands of a GEMM whose result nobody reads, and memory of twice the size of the GPU's cache. They are normal
/// numbers, because constants run faster than the numbers of a model. All lies in `scratch` where that is large enough,
/// else in memory of its own.
class MadeUpOperands {
 public:
  /// Throws IoError when there is no memory.
  MadeUpOperands(const GemmProblem& problem, std::span<std::byte> scratch, Index cache_bytes, Stream stream);
  const GemmOperands& get() const { return operands_; }
  /// Evicts the operands from the cache, as other ops do within a step.
  void fill_cache(Stream stream) const;

 private:
  Buffer own_;
  GemmOperands operands_;
  std::span<std::byte> others_;
};

}  // namespace megalith::ops::cuda
