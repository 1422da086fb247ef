#include "megalith/ops/row_budget.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void limit_rows(Exec& ex, const LimitRows& args) {
  const Index ranks = dims<3>(args.experts, "limit_rows.experts")[0];
  expect_dtype(args.experts, DType::i32, "limit_rows.experts");
  if (args.overflow) expect_like(args.overflow, {2}, DType::i64, "limit_rows.overflow");
  if (args.dropped) expect_like(args.dropped, {1}, DType::i64, "limit_rows.dropped");
  if (args.local_experts < 1 || args.num_experts < 1 || args.num_experts % args.local_experts != 0)
    throw ShapeError(str("[limit_rows] experts, local_experts = ", args.num_experts, ", ", args.local_experts,
                         ": must be at least 1, and the second divide the first"));
  if (args.room < 0 || args.rank < -1 || args.rank >= ranks)
    throw ShapeError(
        str("[limit_rows] room, rank = ", args.room, ", ", args.rank, ": must be at least 0 and in -1 .. ", ranks - 1));
  const Tensor left = ex.tensor({args.num_experts}, DType::i64);
  ex.run({.name = "limit_rows",
          .reads = {args.experts, args.overflow, args.dropped},
          .writes = {args.experts, args.overflow, args.dropped},
          .scratch = left},
         [args, left](Exec& runs, Stream) {
           if (runs.device() != Device::cpu)
             throw BackendError("[limit_rows] device = cuda: built for CPUs: use moe.rank_capacity_factor = \"worst\"");
           cpu::limit_rows(args, left);
         });
}

}  // namespace megalith::ops
