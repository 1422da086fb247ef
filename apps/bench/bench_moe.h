#pragma once
#include "apps/bench/ops_runner.h"

namespace megalith::apps {

/// `bench moe`: routing, dispatch and combine of rows, and the grouped GEMMs beside one GEMM of as many operations.
/// Throws ConfigError if top_k is above the number of experts.
void bench_moe(const OpsBench& options);

}  // namespace megalith::apps
