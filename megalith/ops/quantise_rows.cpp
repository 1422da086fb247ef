#include "megalith/ops/quantise_rows.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/quantise_rows_kernels.h"

namespace megalith::ops {

void quantise_rows(Exec& ex, const QuantiseRows& args) {
  constexpr const char* kName = "quantise_rows";
  expect_float(ex, args.x, kName);
  const auto [tokens, hidden] = dims<2>(args.x, "quantise_rows.x");
  const auto [rows] = dims<1>(args.pair_of, "quantise_rows.pair_of");
  if (args.x.dtype() == DType::f64) throw ShapeError("[quantise_rows] x: dtype = f64: must be f32, bf16 or f16");
  expect_dtype(args.pair_of, DType::i32, "quantise_rows.pair_of");
  expect_choices(tokens, args.top_k, kName);
  if (args.rows) expect_like(args.rows, {rows, hidden}, args.x.dtype(), "quantise_rows.rows");
  if (!args.straight && !args.turned) throw ShapeError("[quantise_rows] straight, turned: one of them must be defined");
  expect_operands(args.straight, args.turned, rows, hidden, kName);
  if ((args.straight ? args.straight : args.turned).blocks != ScaleBlocks::vectors)
    throw ShapeError("[quantise_rows] straight.blocks, turned.blocks = squares: must be vectors");
  run_kernel(
      ex,
      {.name = kName,
       .reads = {args.x, args.pair_of},
       .writes = {args.rows, args.straight.values, args.straight.scales, args.turned.values, args.turned.scales}},
      [args] { cpu::quantise_rows(args); }, [args](auto&, auto stream) { cuda::quantise_rows(stream, args); });
}

}  // namespace megalith::ops
