#pragma once
#include <charconv>
#include <cmath>
#include <string>

#include <CLI/CLI.hpp>

namespace megalith::apps {

// Each adds one subcommand to the program. Its callback prints results on standard output and throws megalith::Error on
// failure; main alone prints errors and chooses the exit code. Long options accept '-' and '_' alike (main folds them).
void add_groups(CLI::App& program);
void add_graphs(CLI::App& program);
void add_schedule(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_data(CLI::App& program);
void add_checkpoint(CLI::App& program);
/// Adds import-hf and export-hf to `checkpoint`.
void add_hugging_face(CLI::App& checkpoint_command);
void add_train(CLI::App& program);
void add_generate(CLI::App& program);
void add_score(CLI::App& program);
void add_plan(CLI::App& program);
void add_bench(CLI::App& program);
void add_doctor(CLI::App& program);

/// Checks that an option's value is a finite number of at least `least`.
inline CLI::Validator at_least(int least) {
  const std::string from = "from " + std::to_string(least);
  return CLI::Validator(
      [least, from](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= least)
          return "";
        return "must be a number " + from + ", not " + text;
      },
      from);
}

}  // namespace megalith::apps
