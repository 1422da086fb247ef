#include "megalith/nn/moe/wide_logits.h"

#include "megalith/nn/linear.h"
#include "megalith/ops/init.h"

namespace megalith::nn {

Tensor wide_logits(Exec& ex, const Tensor& x, const Param& weight) {
  const Tensor logits = ex.tensor({x.dim(0), weight.value.dim(0)}, statistics_dtype(x.dtype()));
  ops::matmul(ex, {.a = x, .b = weight.value, .c = logits, .transpose_b = ops::Transpose::yes});
  return logits;
}

void wide_logits_backward(Exec& ex, const WideLogitsBackward& args, const Param& weight) {
  Tensor dy = args.d_logits;
  if (dy.dtype() != args.x.dtype()) {
    dy = ex.tensor(args.d_logits.shape(), args.x.dtype());
    ops::cast(ex, args.d_logits, dy);
  }
  ops::matmul(ex, {.a = dy, .b = weight.value, .c = args.dx, .write = ops::Write::accumulate});
  ops::matmul(ex, {.a = dy,
                   .b = args.x,
                   .c = weight.grad,
                   .transpose_a = ops::Transpose::yes,
                   .write = write_of(weight, args.weight_grads)});
}

}  // namespace megalith::nn
