#pragma once
#include <CLI/CLI.hpp>

namespace megalith::apps {

// Each adds one command to `checkpoint`.
void add_checkpoint_diff(CLI::App& checkpoint_command);
void add_checkpoint_average(CLI::App& checkpoint_command);
void add_checkpoint_prune(CLI::App& checkpoint_command);
void add_checkpoint_reshard(CLI::App& checkpoint_command);

}  // namespace megalith::apps
