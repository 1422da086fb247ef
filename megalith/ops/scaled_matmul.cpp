#include "megalith/ops/scaled_matmul.h"

#include <array>

#include "megalith/ops/dispatch.h"
#include "megalith/ops/scaled_matmul_kernels.h"

namespace megalith::ops {
namespace {

void check_scaled_matmul(Exec& ex, const ScaledMatmul& args) {
  expect_float(ex, args.c, "scaled_matmul");
  const auto [m, n] = dims<2>(args.c, "scaled_matmul.c");
  if (args.c.dtype() == DType::f64) throw ShapeError("[scaled_matmul] c: dtype = f64: must be f32, bf16 or f16");
  const Index k = dims<2>(args.a.values, "scaled_matmul.a.values")[1];
  expect_operand(args.a, m, k, "scaled_matmul", "a");
  expect_operand(args.b, n, k, "scaled_matmul", "b");
  if (args.a.blocks == ScaleBlocks::squares && args.b.blocks == ScaleBlocks::squares)
    throw ShapeError("[scaled_matmul] a.blocks, b.blocks = squares: one of them must be vectors");
  if (!args.bias) return;
  expect_like(args.bias, {n}, args.c.dtype(), "scaled_matmul.bias");
  if (args.write == Write::accumulate) throw ShapeError("[scaled_matmul] bias: needs Write::overwrite");
}

}  // namespace

std::string_view name_of(ScaledKernel kernel) {
  constexpr std::array<std::string_view, kScaledKernels> kNames = {"chosen", "library", "own", "128", "192"};
  return kNames.at(static_cast<std::size_t>(kernel));
}

void scaled_matmul(Exec& ex, const ScaledMatmul& args) {
  check_scaled_matmul(ex, args);
  run_kernel(
      ex,
      {.name = "scaled_matmul",
       .reads = {args.a.values, args.a.scales, args.b.values, args.b.scales, args.bias,
                 args.write == Write::accumulate ? args.c : Tensor()},
       .writes = {args.c}},
      [args] { cpu::scaled_matmul(args); },
      [args](auto& exec, auto stream) { cuda::scaled_matmul(exec, stream, args); });
}

std::string why_no_scaled_matmul(Exec& ex, const ScaledMatmul& args) {
  check_scaled_matmul(ex, args);
  if constexpr (build::has_cuda) {
    if (ex.device() == Device::cuda && !ex.recording()) return cuda::why_no_scaled_matmul(ex, args);
  }
  return "";
}

}  // namespace megalith::ops
