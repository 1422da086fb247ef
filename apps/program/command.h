#pragma once
#include <charconv>
#include <cmath>
#include <string>

#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Thrown by a command that has compared two things, and has printed how they differ: no error.
struct Differs {
  static constexpr int kExitCode = 1;
};

// Each adds one subcommand to the program. Its callback prints results on standard output and throws megalith::Error
// on failure. Only main prints errors and chooses the exit code. Long options accept '-' and '_' alike (main replaces
// '_').
void add_groups(CLI::App& program);
void add_echo(CLI::App& program);
void add_graphs(CLI::App& program);
void add_schedule(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_tokenizer_command(CLI::App& program);
void add_data(CLI::App& program);
/// Adds clean to `data`.
void add_data_clean(CLI::App& data_command);
/// Adds dedup to `data`.
void add_data_dedup(CLI::App& data_command);
/// Adds overlap to `data`.
void add_data_overlap(CLI::App& data_command);
void add_checkpoint(CLI::App& program);
/// Adds import-hf and export-hf to `checkpoint`.
void add_hugging_face(CLI::App& checkpoint_command);
void add_train(CLI::App& program);
void add_run(CLI::App& program);
void add_trace(CLI::App& program);
void add_verify(CLI::App& program);
void add_finetune(CLI::App& program);
void add_generate(CLI::App& program);
void add_score(CLI::App& program);
void add_eval(CLI::App& program);
void add_report(CLI::App& program);
void add_plan(CLI::App& program);
void add_recipe(CLI::App& program);
void add_bench(CLI::App& program);
void add_doctor(CLI::App& program);

/// Checks that an option's value is a finite number that is `allowed`. `what` describes the range.
template <class Allowed>
CLI::Validator number_that(const Allowed& allowed, const std::string& what) {
  return CLI::Validator(
      [allowed, what](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && allowed(value))
          return "";
        return "must be a number " + what + ", not " + text;
      },
      what);
}
inline CLI::Validator at_least(int min) {
  return number_that([min](double value) { return value >= min; }, "from " + std::to_string(min));
}
/// For a seed: all unsigned numbers of 64 bits.
inline CLI::Validator seed_number() {
  const std::string what = "from 0 to 18446744073709551615";
  return CLI::Validator(
      [what](std::string& text) -> std::string {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return "";
        return "must be a whole number " + what + ", not " + text;
      },
      what);
}
/// For whole numbers up to 2^53.
inline CLI::Validator between(std::int64_t min, std::int64_t max) {
  return number_that(
      [min, max](double value) { return value >= static_cast<double>(min) && value <= static_cast<double>(max); },
      "from " + std::to_string(min) + " to " + std::to_string(max));
}

}  // namespace megalith::apps
