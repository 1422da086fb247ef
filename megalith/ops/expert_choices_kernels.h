#pragma once
#include "megalith/ops/expert_choices.h"

namespace megalith::ops {

// experts, of_choices: (T, K) : (K, 1).  destinations, of_slices: (T, K, P) : (K P, P, 1).
// counts: (S, V) : (V, 1) i32.  row_of: (A) : (1).  arrived_at: (M) : (1).  groups.begin, groups.rows: (L) : (1).
// segments, scratch: (2, S, L) : (S L, L, 1) i64.

namespace cpu {
void place_choices(const PlaceChoices& args);
void repeat_choices(const Tensor& of_choices, const Tensor& of_slices);
void sum_slices(const Tensor& of_slices, const Tensor& of_choices);
void even_choices(const EvenChoices& args);
void regroup_rows(const RegroupRows& args, const Tensor& segments);
}  // namespace cpu

namespace cuda {
void place_choices(Stream stream, const PlaceChoices& args);
void repeat_choices(Stream stream, const Tensor& of_choices, const Tensor& of_slices);
void sum_slices(Stream stream, const Tensor& of_slices, const Tensor& of_choices);
void even_choices(Stream stream, const EvenChoices& args);
void regroup_rows(Stream stream, const RegroupRows& args, const Tensor& segments);
}  // namespace cuda

}  // namespace megalith::ops
