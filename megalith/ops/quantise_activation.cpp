#include "megalith/ops/quantise_activation.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/quantise_activation_kernels.h"
#include "megalith/ops/quantise_kernels.h"

namespace megalith::ops {
namespace {

Index width_of(Activation activation, Index units) { return activation == Activation::swiglu ? 2 * units : units; }

/// `numbers` [rows, columns] are those of the operands, and may be undefined.
void expect_results(const Tensor& numbers, Index rows, Index columns, const Operand& straight, const Operand& turned,
                    DType dtype, std::string_view op) {
  if (dtype == DType::f64) throw ShapeError(str("[", op, "] z: dtype = f64: must be f32, bf16 or f16"));
  if (!straight && !turned && !numbers)
    throw ShapeError(str("[", op, "] straight, turned and the numbers: one of them must be defined"));
  if (numbers && (numbers.shape() != Shape{rows, columns} || numbers.dtype() != dtype))
    expect_like(numbers, {rows, columns}, dtype, str(op, ": the numbers"));
  expect_operands(straight, turned, rows, columns, op);
}

}  // namespace

void quantise_activation(Exec& ex, const QuantiseActivation& args) {
  constexpr const char* kName = "quantise_activation";
  expect_float(ex, args.z, kName);
  const auto [tokens, width] = dims<2>(args.z, "quantise_activation.z");
  const Index units = args.activation == Activation::swiglu ? width / 2 : width;
  expect_like(args.z, {tokens, width_of(args.activation, units)}, args.z.dtype(), "quantise_activation.z");
  expect_results(args.y, tokens, units, args.straight, args.turned, args.z.dtype(), kName);
  expect_groups_of_blocks(args.groups, args.straight, args.turned, kName);
  if (args.groups.begin && args.y) throw ShapeError("[quantise_activation] y: must be undefined with groups");
  run_kernel(
      ex,
      {.name = kName,
       .reads = {args.z, args.groups.begin, args.groups.rows},
       .writes = {args.y, args.straight.values, args.straight.scales, args.turned.values, args.turned.scales}},
      [args] { cpu::quantise_activation(args); },
      [args](auto&, auto stream) { cuda::quantise_activation(stream, args); });
}

void quantise_activation_backward(Exec& ex, const QuantiseActivationBackward& args) {
  constexpr const char* kName = "quantise_activation_backward";
  expect_float(ex, args.z, kName);
  const auto [tokens, units] = dims<2>(args.dy, "quantise_activation_backward.dy");
  const DType dtype = args.dy.dtype();
  const Index width = width_of(args.activation, units);
  expect_like(args.z, {tokens, width}, dtype, "quantise_activation_backward.z");
  expect_results(args.dz, tokens, width, args.straight, args.turned, dtype, kName);
  expect_column_sums(args.column_sums, width, kName);
  const Tensor parts = square_column_sums(ex, args.column_sums, tokens);
  run_kernel(
      ex,
      {.name = kName,
       .reads = {args.z, args.dy, args.column_sums},
       .writes = {args.dz, args.straight.values, args.straight.scales, args.turned.values, args.turned.scales,
                  args.column_sums},
       .scratch = parts},
      [args, parts] { cpu::quantise_activation_backward(args, parts); },
      [args, parts](auto&, auto stream) { cuda::quantise_activation_backward(stream, args, parts); });
}

}  // namespace megalith::ops
