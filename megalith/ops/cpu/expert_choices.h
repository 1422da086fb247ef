#pragma once
#include "megalith/ops/expert_choices.h"

namespace megalith::ops::cpu {

void place_choices(const PlaceChoices& args);
template <class T>
void repeat_choices(const Tensor& of_choices, const Tensor& of_slices);
template <class T>
void sum_slices(const Tensor& of_slices, const Tensor& of_choices);
void even_choices(const EvenChoices& args);
/// segments [2, S L] i64: scratch.
void regroup_rows(const RegroupRows& args, const Tensor& segments);

}  // namespace megalith::ops::cpu
