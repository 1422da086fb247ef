#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Device memory that the libraries of the ops take for one Exec: the workspace of GEMMs. Part of the memory plan.
Index library_workspace_bytes(Device device);
/// Starts those libraries for `ex`, which takes that memory now instead of at the first GEMM. GEMMs with
/// SmMargin::communication (matmul.h) leave a margin of this many SMs.
void start_libraries(Exec& ex, int multiprocessors_for_communication = 0);

/// The library of the CPU's f32 GEMMs: "oneDNN 2.6.0"; empty in a build without it.
std::string cpu_product_library();
/// What of this CPU multiplies bf16 in GEMMs: "AMX"; empty: bf16 is widened to f32.
std::string cpu_bf16_unit();
/// Names and versions of the libraries of the GPU's ops: ("cuBLASLt", "13.1.0"). Empty in a build without CUDA.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace megalith::ops
