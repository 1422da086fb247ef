#include "megalith/ops/mask_columns.h"

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/mask_columns_kernels.h"

namespace megalith::ops {

void mask_columns(Exec& ex, const MaskColumns& args) {
  expect_float(ex, args.z, "mask_columns");
  const Index rows = dims<2>(args.z, "mask_columns.z")[0], samples = dims<1>(args.lengths, "mask_columns.lengths")[0];
  expect_dtype(args.lengths, DType::i32, "mask_columns.lengths");
  if (samples == 0 ? rows > 0 : rows % samples != 0)
    throw ShapeError(str("[mask_columns.z] rows = ", rows, ": must be a multiple of the ", samples, " lengths"));
  run_kernel(
      ex, {.name = "mask_columns", .reads = {args.z, args.lengths}, .writes = {args.z}},
      [args] { cpu::mask_columns(args); }, [args](auto&, auto stream) { cuda::mask_columns(stream, args); });
}

}  // namespace megalith::ops
