#include "megalith/ops/matmul.h"

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/matmul.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void matmul(Exec& ex, const Matmul& args) {
  expect_float(args.c, "matmul");
  const auto [m, n] = dims<2>(args.c, "matmul.c");
  const bool a_transposed = args.transpose_a == Transpose::yes, b_transposed = args.transpose_b == Transpose::yes;
  const Index k = dims<2>(args.a, "matmul.a")[a_transposed ? 0 : 1];
  expect_like(args.a, a_transposed ? Shape{k, m} : Shape{m, k}, args.c.dtype(), "matmul.a");
  expect_like(args.b, b_transposed ? Shape{n, k} : Shape{k, n}, args.c.dtype(), "matmul.b");
  const auto kernel = [args, empty = m == 0 || n == 0, none = k == 0]<class T>() {
    if (empty) return;
    if (!none) return cpu::matmul<T>(args);
    if (args.write == Write::overwrite) cpu::fill<T>(args.c, 0);
  };
  if (args.write == Write::accumulate) {
    run_float(ex, {.name = "matmul", .reads = {args.a, args.b, args.c}, .writes = {args.c}}, args.c.dtype(), kernel);
  } else {
    run_float(ex, {.name = "matmul", .reads = {args.a, args.b}, .writes = {args.c}}, args.c.dtype(), kernel);
  }
}

}  // namespace megalith::ops
