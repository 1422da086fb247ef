#pragma once
#include "apps/bench/ops_runner.h"

namespace megalith::apps {

/// `bench moe`: routing, the way of rows to experts and back, and the grouped products beside one product of as many
/// operations. Throws ConfigError for a top_k above the experts.
void bench_moe(const OpsBench& options);

}  // namespace megalith::apps
