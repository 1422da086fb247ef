#pragma once
#include <cstddef>
#include <span>

#include "megalith/ops/cuda/gemm_library.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops::cuda {

/// Operands of a product whose result nobody reads: normal numbers, as constants run faster than what a model computes
/// on; and memory of twice the size of the GPU's cache. All lies in `scratch` where that is large enough, else in
/// memory of its own.
class MadeUpOperands {
 public:
  /// Throws IoError when there is no memory.
  MadeUpOperands(const GemmProblem& problem, std::span<std::byte> scratch, Index cache_bytes, Stream stream);
  const GemmOperands& get() const { return operands_; }
  /// The operands leave the cache, as they do within a step while other ops run.
  void fill_cache(Stream stream) const;

 private:
  Buffer own_;
  GemmOperands operands_;
  std::span<std::byte> others_;
};

}  // namespace megalith::ops::cuda
