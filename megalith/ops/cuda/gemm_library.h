#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <cublasLt.h>

#include "megalith/tensor/exec.h"

namespace megalith::ops::cuda {

/// What a product does beside multiplying.
enum class Epilogue : std::uint8_t { none, bias, bias_gelu, gelu_backward, gelu_backward_bias_grad };

/// A kind of product, in row-major terms: c [m, n] (+)= op(a) [m, k] op(b) [k, n]. All that an algorithm depends on.
struct GemmProblem {
  Index m = 0, n = 0, k = 0;
  DType in = DType::bf16, out = DType::bf16;
  std::int32_t transpose_a = 0, transpose_b = 0, accumulate = 0;
  Epilogue epilogue = Epilogue::none;
  std::int32_t alignment = 256;  ///< bytes, of every matrix
  auto operator<=>(const GemmProblem&) const = default;
};

struct GemmOperands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  void* vector = nullptr;      ///< bias [n], or the gradient of a bias [n] f32 (row_sums: [m]), which is overwritten
  void* activation = nullptr;  ///< z [m, n] of bias_gelu (written) and gelu_backward (read)
};

/// cuBLASLt of one Exec: handle, workspace, and for every problem met so far the algorithm that was fastest on this
/// GPU. An algorithm is chosen at the first use of a problem, by timing the library's candidates on the operands at
/// hand; what a product adds to is put back in between.
class GemmLibrary {
 public:
  explicit GemmLibrary(Exec& ex);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  /// Runs the product; false when the library has no algorithm for it.
  bool run(Stream stream, const GemmProblem& problem, const GemmOperands& operands);

 private:
  struct Prepared;
  Prepared& prepare(Stream stream, const GemmProblem& problem, const GemmOperands& operands);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Prepared& prepared, const GemmProblem& problem) const;
  cublasStatus_t launch(Stream stream, const Prepared& prepared, const GemmOperands& operands,
                        const cublasLtMatmulAlgo_t& algorithm) const;
  void choose(Stream stream, Prepared& prepared, const GemmProblem& problem, const GemmOperands& operands);

  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<GemmProblem, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace megalith::ops::cuda
