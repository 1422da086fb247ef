#pragma once
#include <algorithm>
#include <string>

#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/matmul.h"

namespace megalith::ops::cuda {

/// Device memory that cuBLASLt may use for one GEMM. There is one workspace per Exec. No workspace serves two streams,
/// so the GEMMs of experts, which run in several, get a share each.
inline constexpr Index kGemmWorkspaceBytes = Index{32} << 20;

/// "13.1.0"
std::string gemm_version();
/// "cuBLASLt 13.1.0"
std::string gemm_library_name();

/// The cuBLASLt of this Exec's GEMMs. The first call makes its handle and workspace.
GemmChooser& gemm_chooser(Exec& ex);
/// GEMMs that run beside communication leave this many SMs free. Call it before the first GEMM.
void set_sm_margin(Exec& ex, int count);

/// Runs by cuBLASLt, with the additions in its epilogues where it has such a kernel for the shape. Otherwise our own
/// kernels follow it. Sums are f32; f32 inputs are not rounded to tf32. parts: scratch for bias_grad [row_parts(K), M]
/// f32, or undefined.
void matmul(Exec& ex, Stream stream, const Matmul& args, const Tensor& parts);
/// Both run by our own kernel on a GPU that it is written for (gelu_product.h), else as matmul().
void matmul_gelu(Exec& ex, Stream stream, const MatmulGelu& args);
inline Index matmul_gelu_backward_parts(Index rows) { return std::max(row_parts(rows), gelu_product_parts(rows)); }
/// parts: scratch [matmul_gelu_backward_parts(T), F] f32
void matmul_gelu_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
