#pragma once
#include <cstdint>

#include "megalith/base/types.h"
#include "megalith/ops/echo_plan.h"

namespace megalith::ops::cpu {

// The stages of plan_echo(), over plain arrays in i64. No stage allocates.

struct EchoSizes {
  Index ranks = 1, experts = 1;
  Index all_slots = 0;  ///< of all ranks: R S

  Index local() const { return experts / ranks; }
  Index slots() const { return all_slots / ranks; }
};

/// `pairs` of `expert` are to be computed by `rank`.
struct EchoMove {
  std::int64_t expert = 0, rank = 0, pairs = 0;
};

/// Sorted keys: the number that a key belongs to.
constexpr Index index_of_key(std::int64_t key) { return static_cast<Index>(key & 0xffffffff); }

/// keys = numbers 0 .. count - 1, descending by value, the lower number first. Values are in [0, 2^31).
void sort_descending(const std::int64_t* values, Index count, std::int64_t* keys);

/// spill of one rank's experts: the pairs above `avg`, which leave the largest experts. `keys` receives the experts
/// ascending by (pairs, number).
void spill_of_rank(const std::int64_t* total, Index local, std::int64_t avg, std::int64_t* spill, std::int64_t* keys);

/// What experts spill and what ranks lack as intervals on one line, the largest first: moves are where they overlap.
/// Returns how many: at most experts + ranks. Those of a rank follow each other.
Index overlap_moves(const EchoSizes& sizes, const std::int64_t* spill, const std::int64_t* spill_keys,
                    const std::int64_t* spare, const std::int64_t* spare_keys, EchoMove* moves);

/// EchoBalance::exact. A rank takes at most as many experts as it has slots; what it lacks then, it does without, and
/// it stays with the others.
struct ExactMoves {
  const std::int64_t *total, *load;  // in   [E], [R]
  std::int64_t *spill, *spare;       // out  [E], [R]: what ranks lack, also where they do not get it
  std::int32_t* wanted;              // out  [R], or null
  std::int64_t *deviation, *left;    // [R], [E]: for the call alone
  std::int64_t* keys;                // [R]: for the call alone
  EchoMove* moves;                   // out  at most E
};
struct MovesFound {
  Index count = 0;
  std::int64_t dropped = 0;  ///< pairs that were to move, and are in none
};
MovesFound exact_moves(const EchoSizes& sizes, const ExactMoves& of);

/// The largest moves of each rank become its slots. Returns the pairs of the others.
struct FillSlots {
  const EchoMove* moves;  // in   those of a rank follow each other
  Index num_moves = 0;
  const std::int64_t* position;  // in   [E]: of an expert in the order of spill
  std::int64_t min_pairs = 0;
  std::int32_t *src, *cap;  // out  [R S]
  std::int32_t* wanted;     // out  [R], or null
};
std::int64_t fill_slots(const EchoSizes& sizes, const FillSlots& args);

/// take[r][k]: how many pairs of source rank r go to slot k.
struct ShareSlots {
  const std::int32_t* counts;     // in   [R, E]
  const std::int64_t* total;      // in   [E]
  const std::int32_t *src, *cap;  // in   [R S]
  std::int32_t* take;             // out  [R, R S]
  std::int32_t *breadth, *room;   // out  [R, R S], [R S], or null
  std::int64_t *first, *next;     // [E], [R S]: for the call alone
  std::int64_t* left;             // [R S]: for the call alone
};
void share_slots(const EchoSizes& sizes, const ShareSlots& args);

}  // namespace megalith::ops::cpu
