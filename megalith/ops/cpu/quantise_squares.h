#pragma once
#include <functional>

#include "megalith/ops/quantise_kernels.h"

namespace megalith::ops::cpu {

/// The operands that a matrix [rows, columns] is rounded to.
struct OperandsOf {
  Index rows, columns;
  const Operand &straight, &turned;
  ScaleForm form = ScaleForm::f32;
  GroupRows groups = {};    ///< undefined: all rows
  Tensor column_sums = {};  ///< as of Quantise, with its scratch
  Tensor sum_parts = {};
};

/// A part of a matrix of at most 128 x 128 numbers, in f32: all blocks of either kind are whole in it.
struct Square {
  Index row = 0, rows = 0, column = 0, columns = 0;  ///< the first ones and their numbers
  Index live_rows = 0;                               ///< the first ones are of a group; others are 0
  float x[kScaleBlock][kScaleBlock];
};

/// Rounds a matrix to E4M3. A task takes one square: make(square) fills the live rows of its x, which it may find to be
/// fewer. Squares without any are left out.
void quantise_squares(const OperandsOf& args, const std::function<void(Square&)>& make);

}  // namespace megalith::ops::cpu
