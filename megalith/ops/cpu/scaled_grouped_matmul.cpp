#include "megalith/base/str.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/scaled_blocks.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/scaled_grouped_matmul_kernels.h"

// A task computes one block of a result, 128 x 128.

namespace megalith::ops::cpu {
namespace {

/// Throws ShapeError unless groups lie in `rows` rows in ascending order.
void check_groups(const GroupRows& groups, Index rows, std::string_view op) {
  const std::int32_t *begin = groups.begin.data<std::int32_t>(), *count = groups.rows.data<std::int32_t>();
  Index end = 0;
  for (Index g = 0; g < groups.count(); ++g) {
    if (count[g] < 0 || begin[g] < end || begin[g] % kEdge != 0 || Index{begin[g]} + count[g] > rows)
      throw ShapeError(str("[", op, ".groups] group ", g, " has ", count[g], " rows from row ", begin[g],
                           " on: must lie in the ", rows, " rows, behind the group before, and begin at a multiple of ",
                           kEdge));
    end = Index{begin[g]} + count[g];
  }
}

}  // namespace

void scaled_grouped_matmul(const ScaledGroupedMatmul& args) {
  const Index m = args.c.dim(0), n = args.c.dim(1), k = args.a.values.dim(1), down = m / kEdge, across = n / kEdge;
  check_groups(args.groups, m, "scaled_grouped_matmul");
  dispatch_float(args.c.dtype(), "scaled_grouped_matmul", [&]<class T>() {
    T* const c = args.c.data<T>();
    parallel_for(down * across, m * n * k, [&](Index i) {
      const Index row = i % down * kEdge, column = i / down * kEdge, group = group_with(args.groups, row);
      if (group < 0) return;
      const OperandPart b =
          args.turned ? OperandPart{args.b, column, group * (k / kEdge)} : OperandPart{args.b, group * n + column, 0};
      BlockSums sums;
      add_scaled_product({args.a, row}, kEdge, b, kEdge, k / kEdge, sums);
      store_sums(sums, kEdge, kEdge, false, c + row * n + column, n);
    });
  });
}

void scaled_grouped_weight_grad(const ScaledGroupedWeightGrad& args) {
  const Index n = args.dw.dim(1), k = args.dw.dim(2), m = args.x.values.dim(1), down = n / kEdge, across = k / kEdge;
  check_groups(args.groups, m, "scaled_grouped_weight_grad");
  const std::int32_t *begin = args.groups.begin.data<std::int32_t>(), *rows = args.groups.rows.data<std::int32_t>();
  const bool adds = args.write == Write::accumulate;
  dispatch_float(args.dw.dtype(), "scaled_grouped_weight_grad", [&]<class T>() {
    T* const dw = args.dw.data<T>();
    parallel_for(args.groups.count() * down * across, m * n * k, [&](Index i) {
      const Index group = i / (down * across), row = i % down * kEdge, column = i / down % across * kEdge;
      if (rows[group] == 0 && adds) return;
      const Index first = begin[group] / kEdge;
      BlockSums sums;
      add_scaled_product({args.dy, row, first}, kEdge, {args.x, column, first}, kEdge, ceil_div(rows[group], kEdge),
                         sums);
      store_sums(sums, kEdge, kEdge, adds, dw + (group * n + row) * k + column, k);
    });
  });
}

}  // namespace megalith::ops::cpu
