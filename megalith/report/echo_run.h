#pragma once
#include <cstdint>
#include <vector>

#include "megalith/ops/echo_plan.h"

namespace megalith::apps {

using Counts = std::vector<std::int32_t>;

/// The pairs of each source rank for each expert.
struct EchoCounts {
  Index ranks = 1, experts = 1;
  Counts counts = {};  ///< [R, E]

  Index local() const { return experts / ranks; }
};

struct EchoSettings {
  Index slots = 0;
  ops::EchoBalance balance = ops::EchoBalance::greedy;
  Index min_pairs = 0;
};

/// What ops::plan_echo() writes, in host memory.
struct EchoResult {
  EchoCounts of;
  EchoSettings settings;
  std::int32_t avg = 0, dropped = 0;
  Counts src, cap, take, rows, load_after;
  std::uint64_t hash = 0;
  Counts total, load, spill, spare, spill_index, spare_index, wanted, moves, breadth, room;

  Index all_slots() const { return of.ranks * settings.slots; }
  Index home(Index slot) const { return src[static_cast<std::size_t>(slot)] / of.local(); }
  Index pairs() const;  ///< of all ranks
  Index moved() const;  ///< of them, in slots
  Index clones() const;
  double max_over_mean(const Counts& load) const;  ///< 1 where there are no pairs
};
EchoResult run_echo(const EchoCounts& counts, const EchoSettings& settings);

/// "greedy" or "exact".
const char* name_of(ops::EchoBalance balance);

}  // namespace megalith::apps
