#pragma once
#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Adds `bench moe`: the parts of a layer of experts, forward and backward, under a load.
void add_bench_moe(CLI::App& bench);

}  // namespace megalith::apps
