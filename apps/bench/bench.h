#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/program/command.h"

namespace megalith::apps {

/// Add to `bench`: the parts of a step against the roof of the device, as gemm, attention, norm and adamw; collectives,
/// communication between ranks.
void add_bench_ops(CLI::App& bench);
/// Whether `bench NAME` is one of these parts, which a rank has for itself: no job of all ranks.
bool is_bench_of_ops(std::string_view name);
void add_bench_collectives(CLI::App& bench);

/// --dropout. NaN is in every range of CLI11's.
inline void add_dropout(CLI::App& command, double& value, const char* what) {
  command.add_option("--dropout", value, what)->check(at_least(0))->check(CLI::Range(0.0, 0.99))->capture_default_str();
}

/// Of one time or more; of an even number the upper of the middle two.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

}  // namespace megalith::apps
