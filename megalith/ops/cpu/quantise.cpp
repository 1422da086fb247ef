#include <algorithm>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/quantise_squares.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops::cpu {
namespace {

constexpr Index kSide = kScaleBlock;

/// Writes the scale of square (row, column) of an operand, and after the last of a row those that belong to none.
void put_square_scale(const Operand& operand, Index row, Index column, float scale) {
  const Index stride = operand.scales.dim(1), used = ceil_div(operand.values.dim(1), kSide);
  float* const line = operand.scales.data<float>() + row * stride;
  line[column] = scale;
  if (column + 1 == used) std::fill(line + used, line + stride, 1.0f);
}

/// Scales by vectors, of `count` lines of an operand from `line` on, at block `block` of K.
void put_vector_scales(const Operand& operand, Index block, Index line, const float* scales, Index count) {
  std::copy_n(scales, count, operand.scales.data<float>() + block * operand.scales.dim(1) + line);
}

Index live_rows_from(const GroupRows& groups, Index row, Index all) {
  if (!groups.begin) return all;
  const Index g = group_with(groups, row);
  return g < 0 ? 0 : Index{groups.begin.data<std::int32_t>()[g]} + groups.rows.data<std::int32_t>()[g] - row;
}

void quantise_square(const OperandsOf& args, const Square& square) {
  const ScaleBlocks blocks = args.straight ? args.straight.blocks : args.turned.blocks;
  std::uint32_t row_max[kSide] = {}, column_max[kSide] = {};
  for (Index r = 0; r < square.rows; ++r) {
    for (Index c = 0; c < square.columns; ++c) {
      const std::uint32_t magnitude = finite_magnitude(square.x[r][c]);
      row_max[r] = std::max(row_max[r], magnitude);
      column_max[c] = std::max(column_max[c], magnitude);
    }
  }
  float of_rows[kSide], of_columns[kSide];
  if (blocks == ScaleBlocks::squares) {
    const float scale = block_scale(*std::max_element(row_max, row_max + kSide), args.form);
    std::fill_n(of_rows, kSide, scale);
    std::fill_n(of_columns, kSide, scale);
    const Index row = square.row / kSide, column = square.column / kSide;
    if (args.straight) put_square_scale(args.straight, row, column, scale);
    if (args.turned) put_square_scale(args.turned, column, row, scale);
  } else {
    for (Index r = 0; r < square.rows; ++r) of_rows[r] = block_scale(row_max[r], args.form);
    for (Index c = 0; c < square.columns; ++c) of_columns[c] = block_scale(column_max[c], args.form);
    if (args.straight) put_vector_scales(args.straight, square.column / kSide, square.row, of_rows, square.rows);
    if (args.turned) put_vector_scales(args.turned, square.row / kSide, square.column, of_columns, square.columns);
  }
  const Index rows = args.rows, columns = args.columns;
  if (args.straight) {
    std::uint8_t* const codes = args.straight.values.data<std::uint8_t>() + square.row * columns + square.column;
    for (Index r = 0; r < square.rows; ++r) {
      const float inverse = 1.0f / of_rows[r];
      for (Index c = 0; c < square.columns; ++c) codes[r * columns + c] = e4m3_code(square.x[r][c] * inverse);
    }
  }
  if (args.turned) {
    std::uint8_t* const codes = args.turned.values.data<std::uint8_t>() + square.column * rows + square.row;
    for (Index c = 0; c < square.columns; ++c) {
      const float inverse = 1.0f / of_columns[c];
      for (Index r = 0; r < square.rows; ++r) codes[c * rows + r] = e4m3_code(square.x[r][c] * inverse);
    }
  }
}

/// parts [columns] = the sums of a square's columns.
void sum_columns(const Square& square, float* parts) {
  std::fill_n(parts, square.columns, 0.0f);
  for (Index r = 0; r < square.live_rows; ++r) {
    for (Index c = 0; c < square.columns; ++c) parts[c] += square.x[r][c];
  }
}

}  // namespace

void quantise_squares(const OperandsOf& args, const std::function<void(Square&)>& make) {
  const Index down = ceil_div(args.rows, kSide), across = ceil_div(args.columns, kSide);
  parallel_for(down * across, args.rows * args.columns, [&](Index i) {
    Square square;
    square.row = i / across * kSide;
    square.column = i % across * kSide;
    square.rows = std::min(kSide, args.rows - square.row);
    square.columns = std::min(kSide, args.columns - square.column);
    square.live_rows = std::min(square.rows, live_rows_from(args.groups, square.row, square.rows));
    if (square.live_rows == 0) return;
    make(square);
    if (square.live_rows == 0) return;
    for (Index r = square.live_rows; r < square.rows; ++r) std::fill_n(square.x[r], square.columns, 0.0f);
    quantise_square(args, square);
    if (args.sum_parts)
      sum_columns(square, args.sum_parts.data<float>() + square.row / kSide * args.columns + square.column);
  });
  if (args.sum_parts)
    add_parts(args.sum_parts.data<float>(), down, args.columns, args.columns, args.column_sums.data<float>());
}

void quantise(const Quantise& args, const Tensor& sum_parts) {
  const Index columns = args.x.dim(1);
  dispatch_float(args.x.dtype(), "quantise", [&]<class T>() {
    const T* const x = args.x.data<T>();
    quantise_squares({.rows = args.x.dim(0),
                      .columns = columns,
                      .straight = args.straight,
                      .turned = args.turned,
                      .form = args.form,
                      .groups = args.groups,
                      .column_sums = args.column_sums,
                      .sum_parts = sum_parts},
                     [&](Square& square) {
                       const T* const from = x + square.row * columns + square.column;
                       for (Index r = 0; r < square.live_rows; ++r) {
                         for (Index c = 0; c < square.columns; ++c)
                           square.x[r][c] = static_cast<float>(from[r * columns + c]);
                       }
                     });
  });
}

}  // namespace megalith::ops::cpu
