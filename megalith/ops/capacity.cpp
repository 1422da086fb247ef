#include "megalith/ops/capacity.h"

#include "megalith/base/str.h"
#include "megalith/ops/capacity_kernels.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void drop_pairs(Exec& ex, const DropPairs& args) {
  const auto [tokens, top_k] = dims<2>(args.experts, "drop_pairs.experts");
  expect_dtype(args.experts, DType::i32, "drop_pairs.experts");
  expect_like(args.kept, {tokens, top_k}, DType::i32, "drop_pairs.kept");
  if (top_k < 1) throw ShapeError("[drop_pairs.experts] top_k = 0: must be at least 1");
  if (args.num_experts < 1 || args.capacity < 0)
    throw ShapeError(str("[drop_pairs] num_experts, capacity = ", args.num_experts, ", ", args.capacity,
                         ": must be at least 1 and at least 0"));
  if (args.run < 1 || tokens % args.run != 0)
    throw ShapeError(str("[drop_pairs] run = ", args.run, ": must divide the ", tokens, " tokens"));
  if (ex.device() == Device::cuda && args.run > kMaxCapacityRunOnGpu)
    throw BackendError(str("[drop_pairs] run = ", args.run, ": must be at most ", kMaxCapacityRunOnGpu, " on a GPU"));
  DType dtype = DType::f32;
  if (args.by == DropBy::probability) {
    dtype = statistics_dtype(args.weights.dtype());
    expect_like(args.weights, {tokens, top_k}, dtype, "drop_pairs.weights");
    expect_float(ex, args.weights, "drop_pairs");
  }
  run_kernel(
      ex, {.name = "drop_pairs", .reads = {args.experts, args.weights}, .writes = {args.kept}},
      [args] { cpu::drop_pairs(args); }, [args](auto&, auto stream) { cuda::drop_pairs(stream, args); });
}

}  // namespace megalith::ops
