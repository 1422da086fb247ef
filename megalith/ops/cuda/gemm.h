#pragma once
#include <algorithm>
#include <string>

#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/matmul.h"

namespace megalith::ops::cuda {

/// Device memory that cuBLASLt may use for one product; one per Exec. No workspace serves
/// two streams: the GEMMs of experts, which run in several, get a share each.
inline constexpr Index kGemmWorkspaceBytes = Index{32} << 20;

/// "13.1.0"
std::string gemm_version();
/// "cuBLASLt 13.1.0"
std::string gemm_library_name();

/// cuBLASLt behind this Exec's products; its handle and workspace are made by the first call.
GemmChooser& gemm_chooser(Exec& ex);
/// Its products beside communication leave so many multiprocessors free. Before the first product.
void set_sm_margin(Exec& ex, int count);

/// By cuBLASLt, with the additions in its epilogues where it has such a kernel for the shape, else by kernels of ours
/// behind it. Products are f32 sums; f32 inputs are not rounded to tf32. parts: scratch for bias_grad
/// [row_parts(K), M] f32, or undefined.
void matmul(Exec& ex, Stream stream, const Matmul& args, const Tensor& parts);
/// These two by a kernel of ours on a GPU that it is written for (gelu_product.h), else likewise.
void matmul_gelu(Exec& ex, Stream stream, const MatmulGelu& args);
inline Index matmul_gelu_backward_parts(Index rows) { return std::max(row_parts(rows), gelu_product_parts(rows)); }
/// parts: scratch [matmul_gelu_backward_parts(T), F] f32
void matmul_gelu_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
