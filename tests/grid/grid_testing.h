#pragma once
#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/masked_groups.h"
#include "megalith/grid/parallel_config.h"

namespace megalith::grid {

using Groups = std::vector<std::vector<int>>;

inline Groups as_vectors(const GroupList& list) {
  Groups groups;
  for (int g = 0; g < list.size(); ++g) groups.emplace_back(list[g].begin(), list[g].end());
  return groups;
}

/// The text of the ConfigError that the call throws.
template <class Call>
std::string config_error(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline int random_divisor(std::mt19937_64& random, int number) {
  std::vector<int> divisors;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors[random() % divisors.size()];
}

/// Sizes whose products agree, with any order of the axes: legal unless the pipeline groups of the two grids differ.
inline ParallelSizes random_sizes(std::mt19937_64& random) {
  const auto one_of = [&](std::initializer_list<int> sizes) { return *(sizes.begin() + random() % sizes.size()); };
  ParallelSizes sizes;
  sizes.tp = one_of({1, 2, 3, 4});
  sizes.cp = one_of({1, 1, 2, 3});
  sizes.pp = one_of({1, 2, 3, 4});
  const int dp = one_of({1, 2, 3, 4, 6});
  const int width = sizes.tp * sizes.cp * dp;
  sizes.world_size = width * sizes.pp;
  sizes.etp = random_divisor(random, width);
  sizes.ep = random_divisor(random, width / *sizes.etp);
  if (sizes.pp > 1 && random() % 2 == 0)
    sizes.split_rank = 1 + static_cast<int>(random() % static_cast<unsigned>(sizes.pp - 1));
  std::array<Axis, kAxes.size()> order = kAxes;
  std::shuffle(order.begin(), order.end(), random);
  sizes.order.clear();
  for (const Axis axis : order) sizes.order += str(sizes.order.empty() ? "" : "-", name_of(axis));
  return sizes;
}

inline std::string describe(const ParallelSizes& s) {
  return str("world_size ", s.world_size, " tp ", s.tp, " cp ", s.cp, " pp ", s.pp, " etp ", s.etp.value_or(s.tp),
             " ep ", s.ep, " split_rank ", s.split_rank.value_or(-1), " order ", s.order);
}

}  // namespace megalith::grid
