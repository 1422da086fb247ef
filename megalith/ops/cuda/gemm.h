#pragma once
#include <string>

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
/// The SMs that a GEMM with this margin leaves free.
int margin_of(Exec& ex, SmMargin margin);

}  // namespace megalith::ops::cuda
