#pragma once
#include "megalith/ops/expert_choices.h"

namespace megalith::ops::cuda {

void place_choices(Stream stream, const PlaceChoices& args);
void repeat_choices(Stream stream, const Tensor& of_choices, const Tensor& of_slices);
void sum_slices(Stream stream, const Tensor& of_slices, const Tensor& of_choices);
void even_choices(Stream stream, const EvenChoices& args);
/// segments [2, S L] i64: scratch.
void regroup_rows(Stream stream, const RegroupRows& args, const Tensor& segments);

}  // namespace megalith::ops::cuda
