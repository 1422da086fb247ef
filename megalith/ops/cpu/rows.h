#pragma once
#include "megalith/ops/rows.h"

namespace megalith::ops::cpu {

void build_rows(const BuildRows& args);
template <class T>
void permute_rows(const PermuteRows& args);
template <class T>
void sum_rows(const SumRows& args);
template <class T>
void sum_rows_backward(const SumRowsBackward& args);

}  // namespace megalith::ops::cpu
