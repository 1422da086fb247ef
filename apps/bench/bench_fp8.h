#pragma once
#include <span>
#include <string_view>

#include "apps/bench/ops_runner.h"

namespace megalith::apps {

/// The models of --model.
std::span<const std::string_view> fp8_models();
/// `bench gemm --precision fp8`: GEMMs in E4M3 with block scales beside those in bf16 of the same sizes, and what
/// quantising costs. Where a GPU has no such GEMM, a line states why.
void bench_fp8(const OpsBench& options);

}  // namespace megalith::apps
