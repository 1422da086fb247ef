#pragma once
#include <cstdint>
#include <vector>

#include "megalith/ops/echo_plan.h"

namespace megalith::ops {

using Ints = std::vector<std::int32_t>;

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }

struct EchoCase {
  Index ranks = 1, experts = 1, slots = 0;
  Ints counts = {};  ///< [R, E]
  EchoBalance balance = EchoBalance::greedy;
  Index min_pairs = 0;

  Index local() const { return experts / ranks; }
  Index all_slots() const { return ranks * slots; }
};

/// R of 1 to 64, small ones more often, S of 0 to 8. Greedy; half of them with min_pairs.
EchoCase random_echo_case(int number);

/// What plan_echo() writes.
struct PlannedEcho {
  bool operator==(const PlannedEcho&) const = default;

  std::int32_t avg = 0, plan_dropped = 0;
  Ints src, cap, take, rows, load_after;
  std::uint64_t hash = 0;
  Ints expert_total, load, spill, spare, spill_index, spare_index, wanted, moves, breadth, room;
};

/// Runs the op. All tensors are full of NaN bytes before.
PlannedEcho planned_echo(const EchoCase& of, Device device = Device::cpu);

/// The hash that held `before`, after plans are hashed every so many steps and this is one of them or not.
std::int64_t hash_in_step(const EchoCase& of, Device device, std::uint64_t step, Index every, std::int64_t before);

}  // namespace megalith::ops
