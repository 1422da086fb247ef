#pragma once
#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Adds `bench echo`: what clones of experts cost on one device, without other ranks.
void add_bench_echo(CLI::App& bench);

}  // namespace megalith::apps
