#include "megalith/ops/row_budget.h"

#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/group_rows.h"
#include "megalith/ops/row_budget_kernels.h"

namespace megalith::ops {

void limit_rows(Exec& ex, const LimitRows& args) {
  const Index ranks = dims<3>(args.experts, "limit_rows.experts")[0];
  expect_dtype(args.experts, DType::i32, "limit_rows.experts");
  if (args.overflow) expect_like(args.overflow, {2}, DType::i64, "limit_rows.overflow");
  if (args.dropped) expect_like(args.dropped, {1}, DType::i64, "limit_rows.dropped");
  if (args.local_experts < 1 || args.num_experts < 1 || args.num_experts % args.local_experts != 0 ||
      args.num_experts > kMaxGroups)
    throw ShapeError(str("[limit_rows] experts, local_experts = ", args.num_experts, ", ", args.local_experts,
                         ": must be 1 to ", kMaxGroups, " experts, which the second divides"));
  if (args.experts.numel() > std::numeric_limits<std::int32_t>::max())
    throw ShapeError(str("[limit_rows] ", args.experts.numel(), " pairs: must be below 2^31"));
  if (args.room < 0 || args.rank < -1 || args.rank >= ranks)
    throw ShapeError(
        str("[limit_rows] room, rank = ", args.room, ", ", args.rank, ": must be at least 0 and in -1 .. ", ranks - 1));
  const Tensor scratch = ex.device() == Device::cpu ? ex.tensor({args.num_experts}, DType::i64)
                                                    : ex.tensor({cuda::LimitScratch(args).numbers()}, DType::i32);
  run_kernel(
      ex,
      {.name = "limit_rows",
       .reads = {args.experts, args.overflow, args.dropped},
       .writes = {args.experts, args.overflow, args.dropped},
       .scratch = scratch},
      [args, scratch] { cpu::limit_rows(args, scratch); },
      [args, scratch](auto&, auto stream) { cuda::limit_rows(stream, args, scratch); });
}

}  // namespace megalith::ops
