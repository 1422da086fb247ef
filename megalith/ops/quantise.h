#pragma once
#include "megalith/ops/e4m3.h"
#include "megalith/ops/group_rows.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// The blocks of a matrix [R, K] whose elements share a scale: 128 along a row (activations, gradients), or squares of
/// 128 x 128 (weights). Blocks at the edges are smaller.
enum class ScaleBlocks : std::uint8_t { vectors, squares };

/// A matrix [R, K] in E4M3, as a GEMM reads it: sums go along K. Element (r, k) is e4m3_value(values[r, k]) times the
/// scale of its block. The layouts of scales are those of cuBLASLt.
struct Operand {
  Tensor values;  // [R, K] u8: codes of E4M3
  Tensor scales;  // f32  vectors: [K / 128, R], squares: [R / 128, K / 128 rounded up to 4]; quotients rounded up
  ScaleBlocks blocks = ScaleBlocks::vectors;
  explicit operator bool() const { return static_cast<bool>(values); }
};
Shape scales_shape(ScaleBlocks blocks, Index rows, Index depth);
/// Memory for an operand [rows, depth].
Operand make_operand(Exec& ex, Index rows, Index depth, ScaleBlocks blocks);
/// Throws ShapeError unless the tensors of an operand [rows, depth] have these shapes and dtypes. The error names
/// argument `argument` of the op.
void expect_operand(const Operand& operand, Index rows, Index depth, std::string_view op, std::string_view argument);
/// The same for those that are defined of the operands of a matrix [rows, columns], "straight", and of its transpose,
/// "turned". Their blocks must be of one kind.
void expect_operands(const Operand& straight, const Operand& turned, Index rows, Index columns, std::string_view op);

/// Rounds a matrix to E4M3 by blocks (e4m3.h). `straight` is x, with blocks along its rows; `turned` is x transposed,
/// with blocks along the columns of x, as a weight gradient and a data gradient read it. Either may be undefined. The
/// squares of both are the same blocks, so `turned` has the same codes and scales then. Entries of scales that belong
/// to no block become 1. Infinity and NaN become NaN and do not change the scale of their block. Bits are the same on
/// CPUs and GPUs. R and C may be 0. Reads x once: 2 to 4 bytes per element, and writes 1 per element and form.
/// With `groups`, x has numbers in the rows of groups only. Rows of none count as zeros up to the next multiple of 128.
/// From there to the next group nothing is read, and nothing is written in either operand.
/// With `column_sums`, the sums of x's columns are added there, as by bias_backward() (elementwise.h) but in another
/// order, which follows from R: x need not be read again for the gradient of a bias. Scratch: 4 C bytes for every 128
/// rows.
/// Throws ShapeError.
struct Quantise {
  Tensor x;               // in   [R, C] f32, bf16 or f16
  Operand straight = {};  // out  [R, C]
  Operand turned = {};    // out  [C, R]
  ScaleForm form = ScaleForm::f32;
  GroupRows groups = {};    // in   undefined: all rows. Its alignment is a multiple of 128. Blocks are vectors
  Tensor column_sums = {};  // in/out  [C] f32, or undefined: none. Not with groups
};
void quantise(Exec& ex, const Quantise& args);

/// Throws ShapeError unless column_sums are undefined, or [columns] f32.
void expect_column_sums(const Tensor& column_sums, Index columns, std::string_view op);
/// Throws ShapeError unless groups are undefined, or may be those of the rows of an operand by vectors.
void expect_groups_of_blocks(const GroupRows& groups, const Operand& straight, const Operand& turned,
                             std::string_view op);

}  // namespace megalith::ops
