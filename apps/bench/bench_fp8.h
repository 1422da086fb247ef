#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/ops_runner.h"

namespace megalith::apps {

/// The models of --model.
std::span<const std::string_view> fp8_models();
/// The kernels of --kernel: the library's, and ours with its forms.
std::vector<std::string> fp8_kernels();
/// `bench gemm --precision fp8`: GEMMs in E4M3 with block scales beside those in bf16 of the same sizes, as a step runs
/// them and on a GPU by the kernels of --kernel, and what quantising costs. All times of a GEMM are measured in turn.
/// Where a GPU has no such GEMM, a line states why.
void bench_fp8(const OpsBench& options);

}  // namespace megalith::apps
