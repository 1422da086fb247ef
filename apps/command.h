#pragma once
#include <CLI/CLI.hpp>

namespace megalith::apps {

// Each adds one subcommand to the program. Its callback prints results on standard output and throws megalith::Error on
// failure; main alone prints errors and chooses the exit code. Long options accept '-' and '_' alike (main folds them).
void add_groups(CLI::App& program);
void add_schedule(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_data(CLI::App& program);
void add_checkpoint(CLI::App& program);
void add_train(CLI::App& program);
void add_generate(CLI::App& program);
void add_plan(CLI::App& program);
void add_bench(CLI::App& program);
void add_doctor(CLI::App& program);

}  // namespace megalith::apps
