#include "megalith/ops/quantise.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/quantise_kernels.h"

namespace megalith::ops {

Shape scales_shape(ScaleBlocks blocks, Index rows, Index depth) {
  const Index deep = ceil_div(depth, kScaleBlock);
  if (blocks == ScaleBlocks::vectors) return {deep, rows};
  return {ceil_div(rows, kScaleBlock), round_up(deep, kScaleStride)};
}

Operand make_operand(Exec& ex, Index rows, Index depth, ScaleBlocks blocks) {
  return {.values = ex.tensor({rows, depth}, DType::u8),
          .scales = ex.tensor(scales_shape(blocks, rows, depth), DType::f32),
          .blocks = blocks};
}

// Text is put together only for an error, because ops allocate nothing.
void expect_operand(const Operand& operand, Index rows, Index depth, std::string_view op, std::string_view argument) {
  const Shape scales = scales_shape(operand.blocks, rows, depth);
  if (operand.values.shape() != Shape{rows, depth} || operand.values.dtype() != DType::u8)
    expect_like(operand.values, {rows, depth}, DType::u8, str(op, ".", argument, ".values"));
  if (operand.scales.shape() != scales || operand.scales.dtype() != DType::f32)
    expect_like(operand.scales, scales, DType::f32, str(op, ".", argument, ".scales"));
}

void expect_operands(const Operand& straight, const Operand& turned, Index rows, Index columns, std::string_view op) {
  if (straight) expect_operand(straight, rows, columns, op, "straight");
  if (turned) expect_operand(turned, columns, rows, op, "turned");
  if (straight && turned && straight.blocks != turned.blocks)
    throw ShapeError(str("[", op, "] turned.blocks: must be those of straight"));
}

void expect_groups_of_blocks(const GroupRows& groups, const Operand& straight, const Operand& turned,
                             std::string_view op) {
  if (!groups.begin) return;
  expect_like(groups.rows, groups.begin.shape(), DType::i32, op);
  if (groups.alignment < 1 || groups.alignment % kScaleBlock != 0)
    throw ShapeError(str("[", op, ".groups] alignment = ", groups.alignment, ": must be a multiple of ", kScaleBlock));
  if ((straight ? straight : turned).blocks != ScaleBlocks::vectors)
    throw ShapeError(str("[", op, "] straight.blocks, turned.blocks = squares: must be vectors with groups"));
}

void expect_column_sums(const Tensor& column_sums, Index columns, std::string_view op) {
  if (column_sums && (column_sums.shape() != Shape{columns} || column_sums.dtype() != DType::f32))
    expect_like(column_sums, {columns}, DType::f32, str(op, ".column_sums"));
}

Tensor square_column_sums(Exec& ex, const Tensor& column_sums, Index rows) {
  if (!column_sums) return {};
  return ex.tensor({ceil_div(rows, kScaleBlock), column_sums.dim(0)}, DType::f32);
}

void quantise(Exec& ex, const Quantise& args) {
  expect_float(ex, args.x, "quantise");
  const auto [rows, columns] = dims<2>(args.x, "quantise.x");
  if (args.x.dtype() == DType::f64) throw ShapeError("[quantise] x: dtype = f64: must be f32, bf16 or f16");
  if (!args.straight && !args.turned) throw ShapeError("[quantise] straight, turned: one of them must be defined");
  expect_operands(args.straight, args.turned, rows, columns, "quantise");
  expect_groups_of_blocks(args.groups, args.straight, args.turned, "quantise");
  expect_column_sums(args.column_sums, columns, "quantise");
  if (args.column_sums && args.groups.begin) throw ShapeError("[quantise] column_sums: must be undefined with groups");
  const Tensor parts = square_column_sums(ex, args.column_sums, rows);
  run_kernel(
      ex,
      {.name = "quantise",
       .reads = {args.x, args.groups.begin, args.groups.rows, args.column_sums},
       .writes = {args.straight.values, args.straight.scales, args.turned.values, args.turned.scales, args.column_sums},
       .scratch = parts},
      [args, parts] { cpu::quantise(args, parts); },
      [args, parts](auto&, auto stream) { cuda::quantise(stream, args, parts); });
}

}  // namespace megalith::ops
