#pragma once
#include <CLI/CLI.hpp>

#include "apps/bench/ops_runner.h"

namespace megalith::apps {

/// Adds `bench grouped`: the rates of grouped GEMMs for given sizes of groups.
void add_bench_grouped(CLI::App& bench);
/// `bench rows`: the ops that bring rows to their experts and back. Throws ConfigError if top_k is above the number of
/// experts, and for more pairs than rows can be numbered.
void bench_rows(const OpsBench& options);

}  // namespace megalith::apps
