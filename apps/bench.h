#pragma once
#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Add to `bench`: the parts of a step against the roof of the device, as gemm, attention, norm and adamw; collectives,
/// communication between ranks.
void add_bench_ops(CLI::App& bench);
void add_bench_collectives(CLI::App& bench);

/// Of one time or more; of an even number the upper of the middle two.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

}  // namespace megalith::apps
