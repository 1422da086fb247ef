#pragma once
#include "apps/command.h"

namespace megalith::apps {

/// `bench gemm`, `attention`, `norm`, `adamw`: the ops of a model's shape against what the device reaches at best.
void add_bench_ops(CLI::App& bench);

}  // namespace megalith::apps
