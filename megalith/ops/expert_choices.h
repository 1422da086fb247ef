#pragma once
#include <algorithm>
#include <numeric>

#include "megalith/ops/rows.h"

namespace megalith::ops {

// Converts a token's choice of experts to destinations: the slices of these experts on the ranks that exchange tokens.
// A rank holds `local_experts` neighbouring experts, or a slice of each. Destination (rank) * local_experts + (local
// expert) is one expert's slice on one rank. So destinations of a rank are neighbours.

/// Where the ranks of an exchange stand. Expert e has its slice s on rank
/// (e / local_experts) * expert_stride + s * slice_stride.
struct ExpertRanks {
  Index local_experts = 1;
  Index slices = 1;  ///< P: how many slices a token's row is sent to
  Index expert_stride = 1, slice_stride = 1;

  constexpr Index destination(Index expert, Index slice) const {
    return (expert / local_experts * expert_stride + slice * slice_stride) * local_experts + expert % local_experts;
  }
};

/// destinations[t, k P + s] = the destination of slice s of experts[t, k]; -1 where experts[t, k] is -1.
struct PlaceChoices {
  Tensor experts;       // in   [T, K] i32
  Tensor destinations;  // out  [T, K P] i32
  ExpertRanks ranks;
};
void place_choices(Exec& ex, const PlaceChoices& args);

/// of_slices[t, k P + s] = of_choices[t, k]. f32 or f64.
void repeat_choices(Exec& ex, const Tensor& of_choices, const Tensor& of_slices);
/// of_choices[t, k] = sum over s ascending of of_slices[t, k P + s]: the inverse direction of repeat_choices. f32 or
/// f64.
void sum_slices(Exec& ex, const Tensor& of_slices, const Tensor& of_choices);

/// experts[t, k] = ((first_row + t) K + k) stride mod E, with the least stride from E / K on that has no divisor in
/// common with E. Every expert gets the same number of tokens, or one more, and a token's experts are spread over all.
struct EvenChoices {
  Tensor experts;  // out  [T, K] i32
  Index num_experts = 1;
  Index first_row = 0;  ///< the first row's number in its microbatch
};
void even_choices(Exec& ex, const EvenChoices& args);
/// The same in a warm-up, within a phase whose plan does not have it. Not for captures.
void even_choices_unplanned(Exec& ex, const EvenChoices& args);
inline Index even_stride(Index num_experts, Index top_k) {
  Index stride = std::max<Index>(1, num_experts / top_k);
  while (std::gcd(stride, num_experts) != 1) ++stride;
  return stride;
}

/// Rows arrive by (source rank, local expert), and experts read them by (local expert, source rank), each expert's as a
/// group. counts[s, first + l] are the rows from source s for local expert l. row_of[r] is the row, in the order of
/// experts, of the r-th row that arrived; kUnusedRow after the last. arrived_at is its inverse, with kZeroRow for rows
/// between groups, and kUnusedRow after the last group.
struct RegroupRows {
  Tensor counts;      // in   [S, V] i32; undefined: all are `each`
  GroupRows groups;   // out  of the local experts
  Tensor row_of;      // out  [A, 1] i32
  Tensor arrived_at;  // out  [capacity_of_groups(A, local_experts, alignment)] i32
  Index sources = 1, first = 0, local_experts = 1;
  Index each = 0;
};
/// Throws InputError on the CPU for a negative count, or more rows than A. On a GPU such counts are clamped, and the
/// host that reads them refuses them (nn/moe/all_to_all_dispatcher.h).
void regroup_rows(Exec& ex, const RegroupRows& args);

}  // namespace megalith::ops
