#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Device memory that the libraries behind the ops take of their own for one Exec: the workspace of matrix products.
/// Part of the memory plan.
Index library_workspace_bytes(Device device);
/// Starts those libraries for `ex`, which takes that memory now rather than at the first product. Products
/// SmMargin::communication (matmul.h) leave so many multiprocessors free.
void start_libraries(Exec& ex, int multiprocessors_for_communication = 0);

/// The library behind the CPU's f32 products: "oneDNN 2.6.0"; empty in a build without it.
std::string cpu_product_library();
/// Names and versions of the libraries behind the GPU's ops: ("cuBLASLt", "13.1.0"). Empty in a build without CUDA.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace megalith::ops
