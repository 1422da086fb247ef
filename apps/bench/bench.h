#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/run_config.h"

#include "apps/program/command.h"

namespace megalith::apps {

/// These add to `bench`: the parts of a step against the limits of the device (gemm, attention, norm, adamw), and
/// collectives (communication between ranks).
void add_bench_ops(CLI::App& bench);
/// Whether `bench NAME` runs on one rank only.
bool is_bench_of_ops(std::string_view name);
void add_bench_collectives(CLI::App& bench);

/// --dropout. A check of its own, as every range of CLI11 accepts NaN.
inline void add_dropout(CLI::App& command, double& value, const char* what) {
  command.add_option("--dropout", value, what)->check(at_least(0))->check(CLI::Range(0.0, 0.99))->capture_default_str();
}

/// Throws ConfigError if a recipe has a preset and options for the model's sizes, as `given` names them, were given
/// too.
inline void refuse_sizes_beside_preset(const config::RunConfig& recipe, const std::vector<std::string>& given) {
  if (!recipe.model.preset || given.empty()) return;
  throw ConfigError(str(given.front(), ": model.preset = ", *recipe.model.preset,
                        " sets it, too; leave one of the two out, or set the model's own key by --set"));
}

/// The median of one time or more; of an even number the upper of the middle two.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

}  // namespace megalith::apps
