#include "megalith/ops/scaled_grouped_matmul.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/scaled_grouped_matmul_kernels.h"

namespace megalith::ops {
namespace {

void expect_wide_blocks(Index size, std::string_view op, const char* name) {
  if (size % kScaleBlock != 0)
    throw ShapeError(str("[", op, "] ", name, " = ", size, ": must be a multiple of ", kScaleBlock));
}

void expect_groups(const GroupRows& groups, Index count, const Operand& rows, std::string_view op) {
  expect_like(groups.begin, {count}, DType::i32, op);
  expect_groups_of_blocks(groups, rows, {}, op);
}

}  // namespace

void scaled_grouped_matmul(Exec& ex, const ScaledGroupedMatmul& args) {
  constexpr const char* kName = "scaled_grouped_matmul";
  expect_float(ex, args.c, kName);
  const auto [m, n] = dims<2>(args.c, "scaled_grouped_matmul.c");
  const Index k = dims<2>(args.a.values, "scaled_grouped_matmul.a.values")[1], groups = args.groups.begin.numel();
  if (args.c.dtype() == DType::f64) throw ShapeError(str("[", kName, "] c: dtype = f64: must be f32, bf16 or f16"));
  expect_wide_blocks(m, kName, "M");
  expect_wide_blocks(n, kName, "N");
  expect_wide_blocks(k, kName, "K");
  expect_operand(args.a, m, k, kName, "a");
  expect_operand(args.b, args.turned ? n : groups * n, args.turned ? groups * k : k, kName, "b");
  if (args.b.blocks != ScaleBlocks::squares) throw ShapeError(str("[", kName, "] b.blocks = vectors: must be squares"));
  expect_groups(args.groups, groups, args.a, kName);
  run_kernel(
      ex,
      {.name = kName,
       .reads = {args.a.values, args.a.scales, args.b.values, args.b.scales, args.groups.begin, args.groups.rows},
       .writes = {args.c}},
      [args] { cpu::scaled_grouped_matmul(args); },
      [args](auto& exec, auto stream) { cuda::scaled_grouped_matmul(exec, stream, args); });
}

void scaled_grouped_weight_grad(Exec& ex, const ScaledGroupedWeightGrad& args) {
  constexpr const char* kName = "scaled_grouped_weight_grad";
  expect_float(ex, args.dw, kName);
  const auto [groups, n, k] = dims<3>(args.dw, "scaled_grouped_weight_grad.dw");
  const Index m = dims<2>(args.x.values, "scaled_grouped_weight_grad.x.values")[1];
  if (args.dw.dtype() == DType::f64) throw ShapeError(str("[", kName, "] dw: dtype = f64: must be f32, bf16 or f16"));
  if (args.dw.dtype() != DType::f32 && args.write == Write::accumulate)
    throw ShapeError(str("[", kName, "] dw: must be f32 where it is added to"));
  expect_wide_blocks(m, kName, "M");
  expect_wide_blocks(n, kName, "N");
  expect_wide_blocks(k, kName, "K");
  expect_operand(args.dy, n, m, kName, "dy");
  expect_operand(args.x, k, m, kName, "x");
  if (args.dy.blocks != ScaleBlocks::vectors)
    throw ShapeError(str("[", kName, "] dy.blocks = squares: must be vectors"));
  expect_groups(args.groups, groups, args.x, kName);
  run_kernel(
      ex,
      {.name = kName,
       .reads = {args.dy.values, args.dy.scales, args.x.values, args.x.scales, args.groups.begin, args.groups.rows,
                 args.write == Write::accumulate ? args.dw : Tensor()},
       .writes = {args.dw}},
      [args] { cpu::scaled_grouped_weight_grad(args); },
      [args](auto& exec, auto stream) { cuda::scaled_grouped_weight_grad(exec, stream, args); });
}

std::string why_no_scaled_grouped_matmul(Exec& ex) {
  if constexpr (build::has_cuda) {
    if (ex.device() == Device::cuda && !ex.recording()) return cuda::why_no_scaled_grouped_matmul(ex);
  }
  return "";
}

}  // namespace megalith::ops
